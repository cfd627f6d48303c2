"""What the checks hold of other packages, held against the packages that are installed."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
from packaging.version import Version

from stallwatch_rules.checks.dsconfig import DsConfig
from stallwatch_rules.checks.parameters import ADAM, SCHEDULERS
from stallwatch_rules.checks.value_kinds import KINDS, check_values

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")

VALUES = ("5e8", "7", " 3.0 ", "1_0", "--1", "x", "", 2, 1.0, True, None, "Off", "auto", [1], {}, "cpu")
#: a process of its own: deepspeed changes what the process that imports it logs and handles
ASK = """
import inspect, json, sys
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import (
    DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig)

models = [DeepSpeedZeroConfig, DeepSpeedZeroOffloadParamConfig, DeepSpeedZeroOffloadOptimizerConfig,
          DeepSpeedFP16Config, DeepSpeedBF16Config]
sections, values, schedulers = json.load(sys.stdin)

def refused(model, key, value):
    try:
        model(**{key: value})
    except ValueError:
        return True
    return False

takes = lambda one: sorted(inspect.signature(one.__init__).parameters)
print(json.dumps({
    "refused": [{key: [refused(model, key, value) for value in values] for key in keys}
                for model, keys in zip(models, sections, strict=True)],
    "schedulers": {name: takes(getattr(lr_schedules, name)) for name in schedulers},
    "adam": sum(map(takes, (DeepSpeedCPUAdam, FusedAdam, torch.optim.Adam, torch.optim.AdamW)), []),
}))
"""


@cache
def told() -> dict[str, Any]:
    question = json.dumps([[list(keys) for keys in KINDS.values()], VALUES, list(SCHEDULERS)])
    answer = subprocess.run(
        [sys.executable, "-c", ASK], input=question, capture_output=True, text=True, timeout=500, check=True
    )
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def test_values_that_are_told_are_those_that_deepspeeds_models_refuse() -> None:
    for (path, kinds), refused in zip(KINDS.items(), told()["refused"], strict=True):
        for key in kinds:
            ours = [
                value for value in VALUES if list(check_values(_config(path, key, value), Version("0.19.8")))
            ]
            theirs = [value for value, no in zip(VALUES, refused[key], strict=True) if no]
            assert len(ours) >= 4, key
            assert [value for value in ours if value not in theirs] == [], key


def _config(path: tuple[str, ...], key: str, value: Any) -> DsConfig:
    config = {key: value}
    for part in reversed(path):
        config = {part: config}
    return DsConfig(config, "ds.json")


def test_parameters_are_those_of_the_constructors() -> None:
    for name, known in SCHEDULERS.items():
        assert known == set(told()["schedulers"][name]) - {"self", "optimizer"}
    assert set(told()["adam"]) - {"self", "params", "model_params"} <= ADAM
