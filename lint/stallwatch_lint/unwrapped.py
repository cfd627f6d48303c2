"""What is saved is not the engine: under ZeRO-3 only the engine can answer for the weights.

accelerate's ``get_state_dict`` asks the model that it is given whether weights are gathered
(1.15.0, ``accelerator.py``), and only DeepSpeed's engine has that method. A trainer whose ``save_model`` puts
another model in the engine's place meets the same (TRL's PPO trainers, 0.11 to 0.16).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stallwatch_lint.diagnostic import Diagnostic, diagnostic
from stallwatch_lint.dsconfig import DsConfig
from stallwatch_lint.kinds import Kinds, kinds_of
from stallwatch_lint.names import Names
from stallwatch_lint.script import Call, Script, dotted

#: methods of DeepSpeed's engine alone (0.19.8, ``runtime/engine.py``)
_OF_ENGINE = ("zero_gather_16bit_weights_on_model_save", "_zero3_consolidated_16bit_state_dict")
_ENGINE, _MODULE = "engine", "module"
_REPLACED = {"self.model", "self.deepspeed"}


def check_unwrapped(config: DsConfig, script: Script) -> Iterator[Diagnostic]:
    """Calls that hand a bare module to accelerate, and trainers that swap their engine for one."""
    if config.stage != 3:
        return
    kinds = kinds_of(script)
    names = _followed(script, kinds)
    for call in script.called(*_OF_ENGINE):
        if isinstance(call.node.func, ast.Attribute) and _is_module(call.node.func.value, names):
            yield diagnostic("saves-past-the-engine-asked", script.at(call), call=call.name, model=call.owner)
    engines = set(_names_of(script, kinds, "prepare"))
    bare = set(_names_of(script, kinds, "unwrap_model")) - engines
    for call in script.called("get_state_dict"):
        model = call.argument("model", 0)
        if (
            kinds.of_owner(call.node) == "accelerator"
            and model is not None
            and (_is_bare(model, engines, bare) or _is_module(model, names))
        ):
            yield diagnostic(
                "saves-past-the-engine-given", script.at(call), call=call.name, model=ast.unparse(model)
            )
    for node in ast.walk(script.tree):
        if isinstance(node, ast.FunctionDef) and node.name == "save_model" and _swaps(node):
            yield diagnostic("saves-past-the-engine-swapped", (script.file, node.lineno))


def _names_of(script: Script, kinds: Kinds, last: str) -> Iterator[str]:
    """The names that a call of this method of an Accelerator is assigned to."""
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        call = Call(dotted(node.value.func), node.value)
        if call.last == last and kinds.of_owner(call.node) == "accelerator":
            for target in node.targets:
                parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
                yield from (dotted(part) for part in parts)


def _followed(script: Script, kinds: Kinds) -> Names:
    """Engines, and modules that are none: ``net = engine.module``, and what an engine was made of."""
    names = Names(script.tree)
    starts = {id(call.node): call for call in script.initializations()}
    nodes = [node for node in ast.walk(script.tree) if isinstance(node, ast.Assign)]
    for node in sorted(nodes, key=lambda one: one.lineno):
        value = node.value.value if isinstance(node.value, ast.Subscript) else node.value
        meaning, targets = "", node.targets
        if (start := starts.get(id(value))) is not None:
            model = start.argument("model", 1)
            if model is not None:
                names.give(model, node, _MODULE)
            meaning, targets = _ENGINE, [_parts(target)[0] for target in targets if _parts(target)]
        elif isinstance(value, ast.Call) and kinds.of_owner(value) == "accelerator":
            meaning = {"prepare": _ENGINE, "unwrap_model": _MODULE}.get(
                Call(dotted(value.func), value).last, ""
            )
            targets = [part for target in targets for part in _parts(target)]
        elif isinstance(value, ast.Attribute) and _is_module(value, names):
            meaning = _MODULE
        for target in targets if meaning else ():
            names.give(target, node, meaning)
    return names


def _parts(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]


def _is_module(model: ast.expr, names: Names) -> bool:
    """Whether it is known for a module that is no engine, where it stands: ``engine.module``."""
    if isinstance(model, ast.Call):
        return dotted(model.func).rpartition(".")[2] == "unwrap_model"
    if isinstance(model, ast.Attribute) and model.attr == "module" and names.meaning(model.value) == _ENGINE:
        return True
    return names.meaning(model) == _MODULE


def _is_bare(model: ast.expr, engines: set[str], bare: set[str]) -> bool:
    if isinstance(model, ast.Call):
        return dotted(model.func).rpartition(".")[2] == "unwrap_model"
    name = dotted(model)
    return name in bare or (name not in engines and any(name.startswith(f"{each}.") for each in engines))


def _swaps(function: ast.FunctionDef) -> bool:
    """Whether it sets ``self.model`` and ``self.deepspeed``, and has another ``save_model`` do the saving."""
    targets = [
        dotted(part)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        for part in (target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target])
    ]
    calls = {
        dotted(node.func).rpartition(".")[2] for node in ast.walk(function) if isinstance(node, ast.Call)
    }
    return set(targets) >= _REPLACED and "save_model" in calls
