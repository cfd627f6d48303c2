"""Find calls that all ranks must make, but that only one rank makes, so this rank waits forever.

According to tests with two ranks under gloo (torch 2.13.0, deepspeed 0.19.8), a ``barrier`` that only rank
0 calls ends in a timeout. ``save_checkpoint`` ends in a timeout at every ZeRO stage. ``save_16bit_model``
ends in a timeout at stage 3, where it gathers the weights. The Trainer's ``save_model`` also gathers the
weights, through ``get_state_dict`` of accelerate (source of transformers 5.23.0 and accelerate 1.15.0).
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from stallwatch_lint.diagnostic import Diagnostic, diagnostic
from stallwatch_lint.facts import CALLS
from stallwatch_lint.kinds import Kinds, kinds_of
from stallwatch_lint.names import Names
from stallwatch_lint.partitioned import Models, models_of
from stallwatch_lint.run import Run
from stallwatch_lint.script import Call, Script, dotted, last_name

_RANK, _IS_FIRST, _IS_OTHER = "rank", "first", "other"
_MEANINGS = {True: _IS_FIRST, False: _IS_OTHER, None: ""}


class FirstRank:
    """The variables that contain a rank or the result of comparing a rank (``main = get_rank() == 0``)."""

    def __init__(self, script: Script) -> None:
        self._names = Names(script.tree)
        for node in script.assignments:
            meaning = _RANK if self._is_rank(node.value) else _MEANINGS[self.passes(node.value)]
            for target in node.targets if meaning else ():
                self._names.give(target, node, meaning)

    def passes(self, test: ast.expr) -> bool | None:
        """Return True if a test holds only on the first rank, and False if it holds only on other ranks.

        Return None if the test does not depend on the rank, or if the dependency is unknown.
        """
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            if self._is_rank(test.operand):
                return True
            inner = self.passes(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            parts = [self.passes(value) for value in test.values]
            return next((part for part in parts if part is not None), None)
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and self._is_rank(test.left):
            return _compared(test.ops[0], test.comparators[0])
        named = test.func if isinstance(test, ast.Call) and not test.args and not test.keywords else test
        if last_name(named) in CALLS.first_rank:
            return True
        return {_IS_FIRST: True, _IS_OTHER: False}.get(self._names.meaning(test))

    def _is_rank(self, node: ast.expr) -> bool:
        """Return whether the node is a rank, such as ``args.local_rank`` or ``get_rank()``."""
        if isinstance(node, ast.Call):
            if dotted(node.func) == "int" and len(node.args) == 1:
                return any(
                    isinstance(inner, ast.Constant) and inner.value in ("RANK", "LOCAL_RANK")
                    for inner in ast.walk(node.args[0])
                )
            return last_name(node.func) in CALLS.rank_calls and not node.args and not node.keywords
        return last_name(node) in CALLS.ranks or self._names.meaning(node) == _RANK


def _compared(operator: ast.cmpop, to: ast.expr) -> bool | None:
    """Return True if a comparison selects rank 0 (``== 0``), and False if it excludes rank 0 (``> 0``).

    ``in (-1, 0)`` also selects rank 0, because -1 means a single process. Return None for other comparisons.
    """
    try:
        value = ast.literal_eval(to)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return None
    if isinstance(operator, (ast.In, ast.NotIn)):
        if not isinstance(value, (tuple, list, set)) or any(number not in (-1, 0) for number in value):
            return None
        return isinstance(operator, ast.In)
    if value != 0 or isinstance(value, bool):
        return None
    if isinstance(operator, (ast.Eq, ast.LtE)):
        return True
    return False if isinstance(operator, (ast.NotEq, ast.Gt)) else None


def check_rank_guard(script: Script, run: Run) -> Iterator[Diagnostic]:
    """Find calls that all ranks must make, but that run only under a condition such as ``if rank == 0:``.

    Skip a call if the code for the other ranks makes the same call, because scripts often let the first
    rank run before the other ranks. Skip collectives of a process group, because ranks outside the group do
    not take part in these collectives.
    """
    models, kinds, guards = models_of(script), kinds_of(script), FirstRank(script)
    first: list[Call] = []
    others: set[str] = set()
    for node in script.nodes:
        if not isinstance(node, ast.If):
            continue
        guard = guards.passes(node.test)
        if guard is None:
            continue
        for alone, body in ((guard, node.body), (not guard, node.orelse)):
            calls = [call for call in _calls(body) if _needs_all(call, script, run, models, kinds)]
            if alone:
                first += calls
            else:
                others |= {call.last for call in calls}
    seen: set[int] = set()
    for call in first:
        if call.last not in others and id(call.node) not in seen:
            seen.add(id(call.node))
            yield diagnostic("called-by-one-rank", script.at(call), call=call.name)


def _calls(body: list[ast.stmt]) -> Iterator[Call]:
    """Yield the calls that run in this branch, but not the calls in functions that the branch defines."""
    inside: list[ast.AST] = list(body)
    while inside:
        node = inside.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(node, ast.Call):
            yield Call.of(node)
        inside += ast.iter_child_nodes(node)


def _needs_all(call: Call, script: Script, run: Run, models: Models, kinds: Kinds) -> bool:
    owner, _, last = script.full(call.name).rpartition(".")
    if last in CALLS.collectives and _is_module(owner, call):
        group = call.argument("group", 0 if last in CALLS.group_first else 2)
        return not call.open and group is None
    if call.last in CALLS.waits_of_accelerate:
        waits = isinstance(call.node.func, ast.Attribute) and kinds.is_accelerator(call.node.func.value)
        return waits and (call.last != "save_state" or run.config is not None)
    zero3 = run.stage == 3
    kind = kinds.of_owner(call.node)
    if call.last == "save_model":
        return zero3 and kind == "trainer" and bool(script.imports & {"transformers", "trl"})
    if call.last in CALLS.saves_of_engine:
        if not any(script.initializations()) or not call.owner or kind in ("trainer", "lightning"):
            return False
        named = "trainer" in call.owner.rpartition(".")[2].lower()
        if kind == "other" and (named or not _may_call_engine(script, call.last)):
            return False
        return zero3 or call.last == "save_checkpoint"
    return models.needs_all(call, zero3=zero3)


def _is_module(owner: str, call: Call) -> bool:
    """Return whether a function belongs to torch or DeepSpeed, given the full name of its module."""
    if any(owner == module or owner.startswith(f"{module}.") for module in CALLS.modules):
        return True
    return all(name.rpartition(".")[2].lower() in CALLS.module_names for name in (owner, call.owner))


def _may_call_engine(script: Script, name: str) -> bool:
    """Return whether the script's own method with this name might call the DeepSpeed engine's method.

    Return True if the script does not define such a method.
    """
    functions: dict[str, list[ast.AST]] = defaultdict(list)
    for function in script.functions:
        functions[function.name].append(function)
    waiting, seen = [name], {name}
    while waiting:
        for node in (inner for function in functions.get(waiting.pop(), ()) for inner in ast.walk(function)):
            called = dotted(node.func) if isinstance(node, ast.Call) else ""
            owner, _, last = called.rpartition(".")
            if last in CALLS.saves_of_engine and owner not in ("", "self"):
                return True
            if last in functions and last not in seen:
                seen.add(last)
                waiting.append(last)
    return name not in functions
