"""Find the names of DeepSpeed models in a script, and the method calls that all ranks must make.

With ZeRO-3, the forward pass of every module gathers the module's weights from all ranks. ``generate`` also
gathers weights (deepspeed 0.19.8, ``runtime/zero/parameter_offload.py``: a hook calls ``fetch_sub_module``).
``GatheredParameters`` and ``get_state_dict`` of accelerate (1.15.0) also gather weights. At every stage, the
engine's ``backward`` and ``step`` reduce gradients.
"""

from __future__ import annotations

import ast
from functools import lru_cache

from stallwatch_lint.facts import CALLS
from stallwatch_lint.kinds import kinds_of
from stallwatch_lint.names import Names
from stallwatch_lint.script import Call, Script, last_name, parts

_CONSOLIDATED = "_zero3_consolidated_16bit_state_dict"  # a method of the engine

# Meanings of names: a result of deepspeed.initialize, and a result of prepare in accelerate.
_ENGINE, _PREPARED = "engine", "prepared"
_MODULE, _BARE = "module", "bare"  # meanings: the module of a model, and the module of another object
_MODEL = "model"  # any of ``_ENGINE``, ``_PREPARED``, and ``_MODULE``
_MODELS = (_ENGINE, _PREPARED, _MODULE, _MODEL)
_UNWRAPPED = (_ENGINE, _PREPARED, _MODULE, _BARE)  # meanings that show whether the object is an engine


class Models:
    """The names in a script that refer to models that DeepSpeed partitions or can partition."""

    def __init__(self, script: Script) -> None:
        self._names = Names(script.tree)
        self._kinds = kinds_of(script)
        starts = {id(call.node): call for call in script.initializations()}
        for node in script.assignments:
            value = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            targets = [parts(target) for target in node.targets]
            if (start := starts.get(id(value))) is not None:
                if (model := start.argument("model", 1)) is not None:
                    self._names.give(model, node, _MODULE)
                meaning, targets = _ENGINE, [several[:1] for several in targets]
            else:
                meaning = self._assigned(value)
            for target in (element for several in targets for element in several) if meaning else ():
                self._names.give(target, node, meaning)
        self._inside = {
            id(inner)
            for node in script.nodes
            if isinstance(node, (ast.With, ast.AsyncWith))
            and any(_last_of(item.context_expr) in CALLS.gathered_inside for item in node.items)
            for inner in ast.walk(ast.Module(node.body, []))
        }

    def needs_all(self, call: Call, *, zero3: bool) -> bool:
        """Return whether all ranks must make this call because the call waits for all ranks."""
        node = call.node
        if call.last in CALLS.reducing and isinstance(node.func, ast.Attribute):
            return self._names.meaning(node.func.value, _MODELS) == _ENGINE
        # In a context that gathers weights, the weights are already present.
        if not zero3 or id(node) in self._inside:
            return False
        if call.last == "GatheredParameters":
            return call.argument("enabled", 3) is None
        if call.last == "get_state_dict":
            return self._kinds.of_owner(node) == "accelerator"
        if call.last == _CONSOLIDATED:
            return True
        if call.last in CALLS.gathering and isinstance(node.func, ast.Attribute):
            return self.is_model(node.func.value)
        return self.is_model(node.func)

    def is_model(self, node: ast.expr) -> bool:
        """Return whether the node is a DeepSpeed model: a name, ``engine.module``, or ``unwrap_model(…)``."""
        if isinstance(node, ast.Call):
            return _last_of(node) == "unwrap_model" and bool(node.args) and self.is_model(node.args[0])
        if isinstance(node, ast.Attribute) and node.attr == "module" and self.is_model(node.value):
            return True
        return bool(self._names.meaning(node, _MODELS))

    def is_module(self, node: ast.expr) -> bool:
        """Return whether the node is certainly a plain module (such as ``engine.module``), not an engine.

        Every part of an object that accelerate's ``prepare`` returned counts as a plain module.
        """
        if isinstance(node, ast.Call):
            return _last_of(node) == "unwrap_model"
        if self._names.meaning(node, _UNWRAPPED) in (_MODULE, _BARE):
            return True
        if not isinstance(node, ast.Attribute):
            return False
        if node.attr == "module" and self._names.meaning(node.value, _UNWRAPPED) == _ENGINE:
            return True
        owner: ast.expr = node
        while isinstance(owner, ast.Attribute):
            owner = owner.value
            if self._names.meaning(owner, _UNWRAPPED) == _PREPARED:
                return True
        return False

    def _assigned(self, value: ast.expr) -> str:
        """Return the meaning of a name after this value is assigned to it."""
        model, method = self.is_model(value), _last_of(value)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            if method in ("prepare", "unwrap_model") and self._kinds.of_owner(value) == "accelerator":
                return _PREPARED if method == "prepare" else _MODULE if model else _BARE
            model = model or (method in CALLS.returning_itself and self.is_model(value.func.value))
        elif isinstance(value, ast.Attribute) and self.is_module(value):
            return _MODULE if model else _BARE
        return _MODEL if model else ""


models_of = lru_cache(maxsize=4)(Models)  # cached for all checks of one script


def _last_of(node: ast.expr) -> str:
    return last_name(node.func) if isinstance(node, ast.Call) else ""
