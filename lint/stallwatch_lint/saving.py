"""Check that a script that saves a ZeRO-3 model first gathers the partitioned weights.

Without the setting that gathers weights, no rank can save the complete model. Code that saves a model without
the DeepSpeed engine writes empty weights. This applies to a model that ``deepspeed.initialize`` or
``prepare`` of accelerate takes or returns, and to the model of a Trainer after training.

Sources: in transformers 5.23.0, ``save_pretrained`` (``modeling_utils.py``) and ``state_dict`` do not
gather weights. ``Trainer.save_model`` gathers weights through the engine. accelerate 1.15.0
(``accelerator.py``, ``get_state_dict``) calls a method of the model that only the DeepSpeed engine has. The
PPO trainers of TRL (PPOv2 in 0.11, PPO in 0.12 to 1.12) fail for the same reason, because their
``save_model`` replaces the engine with a bare model.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stallwatch_lint.diagnostic import Diagnostic, diagnostic
from stallwatch_lint.dsconfig import DsConfig
from stallwatch_lint.kinds import kinds_of
from stallwatch_lint.names import Names
from stallwatch_lint.partitioned import models_of
from stallwatch_lint.run import Run
from stallwatch_lint.script import Call, Script, dotted, last_name, parts, scopes
from stallwatch_rules.text.lazy import lazy

_GATHER = "stage3_gather_16bit_weights_on_model_save"
_KEYS = (_GATHER, "gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save")


def check_saving(config: DsConfig, run: Run) -> Iterator[Diagnostic]:
    """Find scripts that save a ZeRO-3 model without the setting that gathers its weights.

    The problem is reported either once for the configuration or once for each call that saves the model.
    accelerate 1.15.0 (``get_state_dict`` in ``accelerator.py``) raises an error. DeepSpeed 0.19.8
    (``save_16bit_model`` in ``runtime/engine.py``) writes nothing and returns ``False``. The Trainer of
    transformers 5.0 catches the error and writes a sharded checkpoint.
    """
    gathers = any(config.get("zero_optimization", key) not in (None, False) for key in _KEYS)
    if config.stage != 3 or gathers:  # a value that cannot be determined counts as enabled
        return
    places = [place for script in run.scripts for place in _places(script)]
    yield from places
    if not places:
        yield diagnostic("gather-on-save", config.at("zero_optimization", _GATHER))


def _places(script: Script) -> Iterator[Diagnostic]:
    kinds = kinds_of(script)
    for call in script.calls:
        kind = ""
        if call.last == "get_state_dict" and kinds.of_owner(call.node) == "accelerator":
            kind = "gather-on-save-raises"
        elif call.last in ("save_16bit_model", "save_fp16_model") or (
            call.last == "save_model"
            and kinds.of_owner(call.node) == "trainer"
            and script.imports & {"transformers", "trl"}
            and call.constant("_internal_call") is not True
        ):
            kind = "gather-on-save-call"
        if kind:
            yield diagnostic(kind, script.at(call), call=call.name)


_SAVERS = ("save", "save_file", "safe_save_file", "save_model", "save_checkpoint")
_OF_TRAINER = ("model", "model_wrapped", "deepspeed")
_NO_MODEL = lazy(r"(?i)opt|sched|load|data")  # names of arguments of prepare() that are not the model
_ZERO_CHECK = lazy(r"(?i)deepspeed|zero_?[123]|zero_?stage|\bstage\b")
_MODEL, _STATE = "model", "state"


def check_bare_saving(script: Script, run: Run) -> Iterator[Diagnostic]:
    """Find calls that write empty weights because they bypass the engine to save a partitioned model.

    Scripts that gather the weights are skipped. In scripts that use PEFT, ``save_pretrained`` is also
    skipped, because it writes adapters, which can be too small to be partitioned.
    """
    if run.stage != 3 or script.names & {"GatheredParameters"}:
        return
    found = _BareModels(script)
    saved = {id(inner) for save in script.called(*_SAVERS) for inner in ast.walk(save.node)}
    saved |= {id(call) for save in script.called(*_SAVERS) for call in found.states_in(save.node)}
    peft = "peft" in script.imports or bool(script.names & {"get_peft_model", "LoraConfig"})
    for call in script.called("state_dict", "save_pretrained"):
        if call.last == "state_dict" and id(call.node) not in saved:
            continue  # the script copies or compares the state dict, but does not save it
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
    """The expressions of a script that refer to a partitioned model, with the library that partitioned it."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._kinds = kinds_of(script)
        self._names = Names(script.tree)
        given = (call.argument("model", 1) for call in script.initializations())
        self._by_name = {dotted(model) for model in given if model is not None}
        self._by_name.update(name for _, engine in script.engines for name in (engine, f"{engine}.module"))
        self._by_name.discard("?")
        self._scope_of: dict[int, int] = {}
        self._others: dict[int, set[str]] = {}  # names assigned in each scope that does not start an engine
        self._trained: dict[int, int] = {}  # the line of the first training call, by scope
        self._tests_for_engine: set[int] = set()  # scopes that test whether DeepSpeed is used
        self._states: dict[int, ast.Call] = {}  # the call that returned a name's state dict, by line
        self._read()

    def by(self, node: ast.expr) -> str:
        """Return the library or class that partitioned the model at this node.

        The result is ``deepspeed``, ``accelerate``, or ``trainer``. It is an empty string if the node is not
        known to be a partitioned model.
        """
        scope, name = self._scope_of.get(id(node), 0), dotted(node)
        if name in self._by_name and name.partition(".")[0] not in self._others.get(scope, ()):
            return "deepspeed"
        if scope in self._tests_for_engine:
            return ""
        if isinstance(node, ast.Call) and last_name(node.func) == "unwrap_model":
            return self.by(node.args[0]) if node.args else ""
        if isinstance(node, ast.Attribute):
            if node.attr == "module" and (by := self.by(node.value)):
                return by
            if node.attr in _OF_TRAINER and self._kinds.of(node.value) == "trainer":
                return "trainer" if self._has_trained(node, scope) else ""
        meaning = self._names.meaning(node)
        return meaning.removeprefix(_MODEL + " ") if meaning.startswith(_MODEL) else ""

    def states_in(self, node: ast.Call) -> Iterator[ast.Call]:
        """Yield the ``state_dict()`` calls whose results are arguments of the given call."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and (meaning := self._names.meaning(inner)).startswith(_STATE):
                yield self._states[int(meaning.removeprefix(_STATE))]

    def _has_trained(self, node: ast.Attribute, scope: int) -> bool:
        """Return whether the Trainer has trained its model before the script uses the model at this node.

        If the function contains no ``train`` call, return True if the script trains anywhere or if the
        Trainer is ``self``.
        """
        if scope in self._trained:
            return node.lineno > self._trained[scope]
        return scope != id(self._script.tree) and (bool(self._trained) or dotted(node.value) == "self")

    def _read(self) -> None:
        made: dict[str, ast.expr] = {}  # the model of each Trainer, by the Trainer's name
        starts = {id(call.node) for call in self._script.initializations()}
        for scope, nodes in scopes(self._script.tree):
            if not any(id(node) in starts for node in nodes):
                stored = (
                    node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                )
                self._others[id(scope)] = {name.id for name in stored}
            self._scope_of.update((id(node), id(scope)) for node in nodes)
            tests = [node.test for node in nodes if isinstance(node, (ast.If, ast.IfExp))]
            if any(_ZERO_CHECK.search(ast.unparse(test)) for test in tests):
                self._tests_for_engine.add(id(scope))
            calls = [node for node in nodes if isinstance(node, (ast.Assign, ast.Call))]
            for node in sorted(calls, key=lambda call: (call.lineno, isinstance(call, ast.Call))):
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
            call = Call.of(value)
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
            for part, given in zip(parts(target), value.args, strict=False):
                if not _NO_MODEL.search(dotted(part)) and not _NO_MODEL.search(dotted(given)):
                    self._names.give(part, node, f"{_MODEL} accelerate")


#: Methods that only the DeepSpeed engine has (0.19.8, ``runtime/engine.py``).
_OF_ENGINE = ("zero_gather_16bit_weights_on_model_save", "_zero3_consolidated_16bit_state_dict")
_REPLACED = {"self.model", "self.deepspeed"}


def check_unwrapped(script: Script, run: Run) -> Iterator[Diagnostic]:
    """Find code that saves a plain module although ZeRO-3 requires the DeepSpeed engine.

    Such code calls a method that only the engine has, passes the module to accelerate, or replaces a
    trainer's engine with a module.
    """
    if run.stage != 3:
        return
    kinds, models = kinds_of(script), models_of(script)
    for call in script.called(*_OF_ENGINE):
        if isinstance(call.node.func, ast.Attribute) and models.is_module(call.node.func.value):
            yield diagnostic("saves-past-the-engine-asked", script.at(call), call=call.name, model=call.owner)
    for call in script.called("get_state_dict"):
        model = call.argument("model", 0)
        if kinds.of_owner(call.node) == "accelerator" and model is not None and models.is_module(model):
            yield diagnostic(
                "saves-past-the-engine-given", script.at(call), call=call.name, model=ast.unparse(model)
            )
    for function in script.functions:
        if function.name == "save_model" and isinstance(function, ast.FunctionDef) and _swaps(function):
            yield diagnostic("saves-past-the-engine-swapped", (script.file, function.lineno))


def _swaps(function: ast.FunctionDef) -> bool:
    """Return whether a function assigns ``self.model`` and ``self.deepspeed`` and calls ``save_model``."""
    nodes = list(ast.walk(function))
    assigned = (node for node in nodes if isinstance(node, ast.Assign))
    targets = {dotted(part) for node in assigned for target in node.targets for part in parts(target)}
    calls = {last_name(node.func) for node in nodes if isinstance(node, ast.Call)}
    return targets >= _REPLACED and "save_model" in calls
