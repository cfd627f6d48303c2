"""Conditions that only the first rank passes: by what they compare, and by what made the names in them."""

from __future__ import annotations

import ast

from stallwatch_lint.names import Names
from stallwatch_lint.script import Script, dotted

_RANKS = {"rank", "local_rank", "global_rank", "world_rank", "process_index", "local_process_index"}
_RANK_CALLS = {"get_rank", "get_global_rank", "get_local_rank"}
_FIRST = {
    *("is_main_process", "is_local_main_process", "is_world_process_zero", "is_local_process_zero"),
    *("is_rank_zero", "is_rank_0", "is_global_zero"),
}
_RANK, _IS_FIRST, _IS_OTHER = "rank", "first", "other"
_MEANINGS = {True: _IS_FIRST, False: _IS_OTHER, None: ""}


class FirstRank:
    """Follows ``r = dist.get_rank()`` and ``main = r == 0`` through the assignments of a script."""

    def __init__(self, script: Script) -> None:
        self._names = Names(script.tree)
        nodes = [node for node in ast.walk(script.tree) if isinstance(node, ast.Assign)]
        for node in sorted(nodes, key=lambda one: one.lineno):
            meaning = _RANK if self._is_rank(node.value) else _MEANINGS[self.passes(node.value)]
            for target in node.targets if meaning else ():
                self._names.give(target, node, meaning)

    def passes(self, test: ast.expr) -> bool | None:
        """``True`` where only the first rank passes, ``False`` where only the others do, else ``None``."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            if self._is_rank(test.operand):
                return True
            inner = self.passes(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            parts = [self.passes(one) for one in test.values]
            return next((one for one in parts if one is not None), None)
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and self._is_rank(test.left):
            return _compared(test.ops[0], test.comparators[0])
        called = isinstance(test, ast.Call) and not test.args and not test.keywords
        named = test.func if called and isinstance(test, ast.Call) else test
        if _last(named) in _FIRST:
            return True
        return {_IS_FIRST: True, _IS_OTHER: False}.get(self._names.meaning(test))

    def _is_rank(self, node: ast.expr) -> bool:
        """``rank``, ``args.local_rank``, ``dist.get_rank()`` of the world, ``int(os.environ["RANK"])``."""
        if isinstance(node, ast.Call):
            if dotted(node.func) == "int" and len(node.args) == 1:
                return any(
                    isinstance(one, ast.Constant) and one.value in ("RANK", "LOCAL_RANK")
                    for one in ast.walk(node.args[0])
                )
            return _last(node.func) in _RANK_CALLS and not node.args and not node.keywords
        return _last(node) in _RANKS or self._names.meaning(node) == _RANK


def _compared(operator: ast.cmpop, to: ast.expr) -> bool | None:
    """``== 0`` and ``in (-1, 0)`` against ``!= 0``, ``> 0`` and ``not in [-1, 0]``."""
    try:
        value = ast.literal_eval(to)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return None
    if isinstance(operator, (ast.In, ast.NotIn)):
        if not isinstance(value, (tuple, list, set)) or any(one not in (-1, 0) for one in value):
            return None
        return isinstance(operator, ast.In)
    if value != 0 or isinstance(value, bool):
        return None
    if isinstance(operator, (ast.Eq, ast.LtE)):
        return True
    return False if isinstance(operator, (ast.NotEq, ast.Gt)) else None


def _last(node: ast.expr) -> str:
    return dotted(node).rsplit(".", 1)[-1]
