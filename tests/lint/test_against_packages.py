"""The checks' knowledge of other packages, compared with the installed packages."""

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

from stallwatch_lint.config_keys import KNOWN, check_values
from stallwatch_lint.dsconfig import DsConfig
from stallwatch_lint.facts import TRAINERS
from stallwatch_lint.optimizers import KNOWN as OPTIMIZERS
from stallwatch_lint.run import Run

needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")

#: keys with known types, by the path of their section
KINDS = {
    tuple(path.split(".")): [name for name, key in section.keys.items() if key.kind]
    for path, section in KNOWN.sections.items()
}
VALUES = ("5e8", "7", " 3.0 ", "1_0", "--1", "x", "", 2, 1.0, True, None, "Off", "auto", [1], {}, "cpu")
LAST = Run(versions={"deepspeed": "0.19.8"})
#: a separate process, because importing deepspeed changes logging and handlers
ASK = """
import inspect, json, sys
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.config import DeepSpeedConfig
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

class Asked(dict):  # notes what DeepSpeed asks for at the top, however it asks
    keys_of = set()
    def note(self, key):
        self.keys_of.add(key)
        return key
    __copy__ = copy = keys = lambda self: self
    get = lambda self, key, default=None: dict.get(self, self.note(key), default)
    __getitem__ = lambda self, key: dict.__getitem__(self, self.note(key))
    __contains__ = lambda self, key: dict.__contains__(self, self.note(key))

asked = Asked(train_batch_size=8)
DeepSpeedConfig(asked)

takes = lambda one: sorted(inspect.signature(one.__init__).parameters)
print(json.dumps({
    "refused": [{key: [refused(model, key, value) for value in values] for key in keys}
                for model, keys in zip(models, sections, strict=True)],
    "top": sorted(asked.keys_of),
    "schedulers": {name: takes(getattr(lr_schedules, name)) for name in schedulers},
    "adam": sum(map(takes, (DeepSpeedCPUAdam, FusedAdam, torch.optim.Adam, torch.optim.AdamW)), []),
}))
"""


@cache
def facts_of_deepspeed() -> dict[str, Any]:
    question = json.dumps([list(KINDS.values()), VALUES, list(OPTIMIZERS.schedulers)])
    answer = subprocess.run(
        [sys.executable, "-c", ASK], input=question, capture_output=True, text=True, timeout=500, check=True
    )
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


@needs_deepspeed
def test_reported_values_are_those_that_deepspeed_refuses() -> None:
    for (path, kinds), refused in zip(KINDS.items(), facts_of_deepspeed()["refused"], strict=True):
        for key in kinds:
            ours = [value for value in VALUES if list(check_values(_config(path, key, value), LAST))]
            theirs = [value for value, no in zip(VALUES, refused[key], strict=True) if no]
            assert len(ours) >= 4, key
            assert [value for value in ours if value not in theirs] == [], key


def _config(path: tuple[str, ...], key: str, value: Any) -> DsConfig:
    config = {key: value}
    for part in reversed(path):
        config = {part: config}
    return DsConfig(config, "ds.json")


@needs_deepspeed
def test_known_top_level_keys_match_deepspeed() -> None:
    """A key that DeepSpeed reads and that is unknown here would be reported as ignored."""
    asked = set(facts_of_deepspeed()["top"])
    assert {"gradient_clipping", "wall_clock_breakdown", "zero_optimization"} <= asked
    assert asked - KNOWN.top == set()
    assert set(KNOWN.removed_at_top) <= KNOWN.top


@needs_deepspeed
def test_known_parameters_match_the_constructors() -> None:
    for name, known in OPTIMIZERS.schedulers.items():
        assert known == set(facts_of_deepspeed()["schedulers"][name]) - {"self", "optimizer"}
    assert set(facts_of_deepspeed()["adam"]) - {"self", "params", "model_params"} <= OPTIMIZERS.adam


def test_known_defaults_match_the_training_arguments() -> None:
    defaults: dict[str, Any] = {}
    for node in ast.walk(_transformers("training_args.py")):
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
            values = [keyword.value for keyword in node.value.keywords if keyword.arg == "default"]
            if values and isinstance(values[0], ast.Constant):
                defaults[ast.unparse(node.target)] = values[0].value
    assert {name: defaults.get(name) for name in TRAINERS.defaults} == TRAINERS.defaults


@pytest.mark.parametrize(("file", "name"), [("trainer", "Trainer"), ("trainer_seq2seq", "Seq2SeqTrainer")])
def test_known_trainer_arguments_match_the_installed_trainers(file: str, name: str) -> None:
    (init,) = [
        method
        for node in _transformers(f"{file}.py").body
        if isinstance(node, ast.ClassDef) and node.name == name
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
    ]
    taken = {argument.arg for argument in init.args.args + init.args.kwonlyargs} - {"self"}
    assert taken <= TRAINERS.taken
    assert init.args.kwarg is None


def _transformers(file: str) -> ast.Module:
    """Return a module of transformers as a syntax tree: its import takes many seconds."""
    found = find_spec("transformers")
    if found is None or found.origin is None:
        pytest.skip("transformers is not installed")
    return ast.parse((Path(found.origin).parent / file).read_text(encoding="utf-8"))
