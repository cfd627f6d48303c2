"""Names of a script that stand for a model under DeepSpeed, and calls of it that all ranks must make.

At ZeRO-3 every module's forward gathers its weights from all ranks, and so does ``generate`` (deepspeed
0.19.8, ``runtime/zero/parameter_offload.py``: the hook before it calls ``fetch_sub_module``);
``GatheredParameters`` does on entering, and accelerate's ``get_state_dict`` (1.15.0) on its way.
At every stage, backward and step of the engine reduce gradients.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import lru_cache

from stallwatch_lint.kinds import kinds_of
from stallwatch_lint.names import Names
from stallwatch_lint.script import Call, Script, dotted

_GATHERING = {"forward", "generate"}
_REDUCING = {"backward", "step"}
_INSIDE = {"GatheredParameters", "unwrap_model_for_generation", "summon_full_params"}
_CONSOLIDATED = "_zero3_consolidated_16bit_state_dict"  # of the engine
_ITSELF = {"train", "eval", "to", "cuda", "half", "bfloat16", "float", "requires_grad_"}  # return the module
_MODEL, _ENGINE = "model", "engine"


class Models:
    """What of a script stands for a model that DeepSpeed has, or may have, partitioned."""

    def __init__(self, script: Script) -> None:
        self._names = Names(script.tree)
        self._kinds = kinds_of(script)
        initializations = {id(call.node) for call in script.initializations()}
        nodes = [node for node in ast.walk(script.tree) if isinstance(node, ast.Assign)]
        for node in sorted(nodes, key=lambda one: one.lineno):
            value = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            if isinstance(value, ast.Call) and id(value) in initializations:
                self._of_initialization(node, Call(dotted(value.func), value))
            elif self.is_model(value) or (isinstance(value, ast.Call) and self._prepared(value)):
                self._add(node, node.targets, _MODEL)
        self._inside = {
            id(inner)
            for node in ast.walk(script.tree)
            if isinstance(node, (ast.With, ast.AsyncWith))
            and any(_last_of(item.context_expr) in _INSIDE for item in node.items)
            for inner in ast.walk(ast.Module(node.body, []))
        }

    def needs_all(self, call: Call, *, zero3: bool) -> bool:
        """Whether all ranks must make this call."""
        node = call.node
        if call.last in _REDUCING and isinstance(node.func, ast.Attribute):
            return self._names.meaning(node.func.value) == _ENGINE
        if not zero3 or id(node) in self._inside:  # weights that were gathered are there
            return False
        if call.last == "GatheredParameters":
            return call.argument("enabled", 3) is None
        if call.last == "get_state_dict":
            return self._kinds.of_owner(node) == "accelerator"
        if call.last == _CONSOLIDATED:
            return True
        if call.last in _GATHERING and isinstance(node.func, ast.Attribute):
            return self.is_model(node.func.value)
        return self.is_model(node.func)

    def _of_initialization(self, node: ast.Assign, call: Call) -> None:
        first = [
            target.elts[0] if isinstance(target, (ast.Tuple, ast.List)) and target.elts else target
            for target in node.targets
        ]
        model = call.argument("model", 1)
        self._add(node, [model] if model is not None else [], _MODEL)
        self._add(node, first, _ENGINE)

    def _prepared(self, value: ast.Call) -> bool:
        """``accelerator.prepare(model)``, or what a module's method gives back: the module itself."""
        if not isinstance(value.func, ast.Attribute):
            return False
        owner, called = value.func.value, value.func.attr
        if called == "prepare" and self._kinds.of(owner) == "accelerator":
            return True
        return called in _ITSELF and self.is_model(owner)

    def _add(self, node: ast.Assign, targets: Iterable[ast.expr], meaning: str) -> None:
        for target in targets:
            parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
            for part in parts:
                self._names.give(part, node, meaning)

    def is_model(self, node: ast.expr) -> bool:
        """``engine``, ``engine.module``, ``accelerator.unwrap_model(model)``."""
        if isinstance(node, ast.Call):
            return _last_of(node) == "unwrap_model" and bool(node.args) and self.is_model(node.args[0])
        if isinstance(node, ast.Attribute) and node.attr == "module" and self.is_model(node.value):
            return True
        return bool(self._names.meaning(node))


@lru_cache(maxsize=4)
def models_of(script: Script) -> Models:
    """For the checks of one script, each of which asks."""
    return Models(script)


def _last_of(node: ast.expr) -> str:
    return dotted(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
