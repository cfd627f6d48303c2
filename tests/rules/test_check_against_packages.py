"""What the checks hold of other packages, held against the packages that are installed."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from stallwatch_rules.checks.dsconfig import DsConfig
from stallwatch_rules.checks.parameters import ADAM, SCHEDULERS
from stallwatch_rules.checks.training_arguments import COMPARED
from stallwatch_rules.checks.value_kinds import KINDS, check_values

needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")

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


@needs_deepspeed
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


@needs_deepspeed
def test_parameters_are_those_of_the_constructors() -> None:
    for name, known in SCHEDULERS.items():
        assert known == set(told()["schedulers"][name]) - {"self", "optimizer"}
    assert set(told()["adam"]) - {"self", "params", "model_params"} <= ADAM


def test_defaults_are_those_of_the_training_arguments() -> None:
    found = find_spec("transformers")
    if found is None or found.origin is None:
        pytest.skip("transformers is not installed")
    source = (Path(found.origin).parent / "training_args.py").read_text(encoding="utf-8")
    defaults: dict[str, Any] = {}
    for node in ast.walk(ast.parse(source)):  # its import takes many seconds
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
            values = [one.value for one in node.value.keywords if one.arg == "default"]
            if values and isinstance(values[0], ast.Constant):
                defaults[ast.unparse(node.target)] = values[0].value
    assert {name: defaults.get(name) for name, _ in COMPARED.values()} == dict(COMPARED.values())
