"""``state_dict()`` and ``save_pretrained`` of a model that ZeRO-3 has partitioned: what they save is empty.

Which model that is: what ``deepspeed.initialize`` or accelerate's ``prepare`` was given and gives back, and a
Trainer's once it has trained (transformers 5.23.0: neither ``save_pretrained`` of ``modeling_utils.py`` nor
``state_dict`` gathers; ``Trainer.save_model`` does, by the engine).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stallwatch_lint.diagnostic import Diagnostic, diagnostic
from stallwatch_lint.dsconfig import DsConfig
from stallwatch_lint.kinds import kinds_of
from stallwatch_lint.names import Names
from stallwatch_lint.script import Call, Script, dotted, scopes
from stallwatch_rules.text.lazy import lazy

_SAVERS = ("save", "save_file", "safe_save_file", "save_model", "save_checkpoint")
_OF_TRAINER = ("model", "model_wrapped", "deepspeed")
_NO_MODEL = lazy(r"(?i)opt|sched|load|data")  # what prepare() is given beside the model
_ASKS = lazy(r"(?i)deepspeed|zero_?[123]|zero_?stage|\bstage\b")
_MODEL, _STATE = "model", "state"


def check_bare_saving(config: DsConfig, script: Script) -> Iterator[Diagnostic]:
    """What is saved past the engine, in scripts that gather nothing themselves.

    With PEFT, ``save_pretrained`` writes adapters that may be small enough to stay whole: nothing is said.
    """
    if config.stage != 3 or script.names & {"GatheredParameters"}:
        return
    found = _BareModels(script)
    saved = {id(inner) for save in script.called(*_SAVERS) for inner in ast.walk(save.node)}
    saved |= {id(call) for save in script.called(*_SAVERS) for call in found.states_in(save.node)}
    peft = "peft" in script.imports or bool(script.names & {"get_peft_model", "LoraConfig"})
    for call in script.called("state_dict", "save_pretrained"):
        if call.last == "state_dict" and id(call.node) not in saved:
            continue  # copied or compared, not saved
        if (
            call.open
            or call.argument("state_dict") is not None
            or not isinstance(call.node.func, ast.Attribute)
        ):
            continue
        by = found.by(call.node.func.value)
        if by and not (peft and call.last == "save_pretrained" and by != "deepspeed"):
            yield diagnostic(f"saves-partitioned-weights-{by}", script.at(call), call=call.name)


class _BareModels:
    """What stands for a partitioned model, and by whom."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._kinds = kinds_of(script)
        self._names = Names(script.tree)
        self._by_name = _initialized(script)
        self._scope_of: dict[int, int] = {}
        self._others: dict[int, set[str]] = {}  # by scope that starts no engine, what gets values there
        self._trained: dict[int, int] = {}  # by scope, the first line that trains
        self._asking: set[int] = set()  # scopes that ask whether DeepSpeed is there
        self._states: dict[int, ast.Call] = {}  # by line, what a name's state dict was taken from
        self._read()

    def by(self, node: ast.expr) -> str:
        """``deepspeed``, ``accelerate`` or ``trainer``; empty for what is no partitioned model."""
        scope, name = self._scope_of.get(id(node), 0), dotted(node)
        if name in self._by_name - {"?"} and name.partition(".")[0] not in self._others.get(scope, ()):
            return "deepspeed"
        if scope in self._asking:
            return ""
        if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "unwrap_model":
            return self.by(node.args[0]) if node.args else ""
        if isinstance(node, ast.Attribute):
            if node.attr == "module" and (by := self.by(node.value)):
                return by
            if node.attr in _OF_TRAINER and self._kinds.of(node.value) == "trainer":
                return "trainer" if self._has_trained(node, scope) else ""
        meaning = self._names.meaning(node)
        return meaning.removeprefix(_MODEL + " ") if meaning.startswith(_MODEL) else ""

    def states_in(self, node: ast.Call) -> Iterator[ast.Call]:
        """The ``state_dict()`` calls whose results the arguments name."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and (meaning := self._names.meaning(inner)).startswith(_STATE):
                yield self._states[int(meaning.removeprefix(_STATE))]

    def _has_trained(self, node: ast.Attribute, scope: int) -> bool:
        """Whether a Trainer trained before this line; in another function, whether the script trains."""
        if scope in self._trained:
            return node.lineno > self._trained[scope]
        return scope != id(self._script.tree) and (bool(self._trained) or dotted(node.value) == "self")

    def _read(self) -> None:
        made: dict[str, ast.expr] = {}  # by a Trainer's name, the model that it was made of
        starts = {id(call.node) for call in self._script.initializations()}
        for scope, nodes in scopes(self._script.tree):
            if not any(id(node) in starts for node in nodes):
                stored = (
                    one for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
                )
                self._others[id(scope)] = {one.id for one in stored}
            self._scope_of.update((id(node), id(scope)) for node in nodes)
            tests = [node.test for node in nodes if isinstance(node, (ast.If, ast.IfExp))]
            if any(_ASKS.search(ast.unparse(test)) for test in tests):
                self._asking.add(id(scope))
            calls = [node for node in nodes if isinstance(node, (ast.Assign, ast.Call))]
            for node in sorted(calls, key=lambda one: (one.lineno, isinstance(one, ast.Call))):
                if isinstance(node, ast.Assign):
                    self._assign(node, made)
                elif isinstance(node.func, ast.Attribute) and node.func.attr == "train":
                    owner = node.func.value
                    if self._kinds.of(owner) == "trainer":
                        self._trained.setdefault(id(scope), node.lineno)
                        if model := made.get(dotted(owner)):
                            self._names.give(model, node, f"{_MODEL} trainer")

    def _assign(self, node: ast.Assign, made: dict[str, ast.expr]) -> None:
        value = node.value
        if isinstance(value, ast.Call):
            call = Call(dotted(value.func), value)
            if self._kinds.of(value) == "trainer" and (model := call.argument("model", 0)) is not None:
                made.update((dotted(target), model) for target in node.targets)
                return
            if call.last == "prepare" and self._kinds.of_owner(value) == "accelerator":
                self._prepared(node, value)
                return
            if call.last == "state_dict":
                self._states[node.lineno] = value
                for target in node.targets:
                    self._names.give(target, node, f"{_STATE}{node.lineno}")
                return
        if (by := self.by(value)) and by != "deepspeed":
            for target in node.targets:
                self._names.give(target, node, f"{_MODEL} {by}")

    def _prepared(self, node: ast.Assign, value: ast.Call) -> None:
        for target in node.targets:
            parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
            for part, given in zip(parts, value.args, strict=False):
                if not _NO_MODEL.search(dotted(part)) and not _NO_MODEL.search(dotted(given)):
                    self._names.give(part, node, f"{_MODEL} accelerate")


def _initialized(script: Script) -> set[str]:
    """The names of what ``deepspeed.initialize`` is given and gives back, in any function."""
    calls = {id(call.node): call for call in script.initializations()}
    models = {dotted(one) for call in calls.values() if (one := call.argument("model", 1)) is not None}
    engines = set()
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and id(node.value) in calls:
            target = node.targets[0]
            engines.add(dotted(target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target))
    return models | engines | {f"{engine}.module" for engine in engines}
