"""Determine which lines of a script always run and which lines depend on a condition."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from stallwatch_lint.script import dotted, last_name
from stallwatch_rules.text.lazy import lazy

#: How often runs reach a node. ``always``: in every run. ``sometimes``: depending on a condition.
#: ``by-version``: depending on a condition about the installed packages.
Reached = Literal["always", "sometimes", "by-version"]
_VERSION_CHECK = lazy(r"(?i)version|signature|hasattr|fields|parameters|available|inspect|find_spec")
_INSTALLATION_ERRORS = {
    "TypeError",
    "ImportError",
    "ModuleNotFoundError",
    "AttributeError",
}  # exceptions that other releases of a package can cause
_CATCHERS = {"suppress", "raises", "assertRaises"}


class Conditions:
    """An analysis of how often each node of a script is reached.

    The result depends on the blocks around a node and on earlier ``return`` and ``continue`` statements.
    """

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        self._above = {id(child): node for node in nodes for child in ast.iter_child_nodes(node)}
        # Variables with the result of a version check, such as `NEW = version.parse(trl.__version__) >= …`.
        self._flags = {
            dotted(target)
            for node in nodes
            if isinstance(node, ast.Assign) and _VERSION_CHECK.search(ast.unparse(node.value))
            for target in node.targets
        } - {"?"}

    def of(self, node: ast.AST) -> Reached:
        """Return how often this node is reached."""
        found = set(self._around(node))
        return "by-version" if "by-version" in found else "sometimes" if found else "always"

    def _around(self, node: ast.AST) -> Iterator[Reached]:
        while (above := self._above.get(id(node))) is not None:
            if isinstance(above, (ast.If, ast.IfExp)) and node is not above.test:
                yield from self._tested(above.test)
            elif isinstance(above, (ast.match_case, ast.While)) or (
                isinstance(above, ast.BoolOp) and node is not above.values[0]
            ):
                yield "sometimes"
            elif isinstance(above, ast.Try) and above.handlers and node not in above.finalbody:
                yield "by-version" if any(map(_checks_installation, above.handlers)) else "sometimes"
            elif isinstance(above, ast.ExceptHandler) or any(map(_catches, getattr(above, "items", ()))):
                yield "by-version"
            for before in _before(above, node):
                if isinstance(before, ast.If) and any(map(_leaves, (before.body, before.orelse))):
                    yield from self._tested(before.test)
            node = above

    def _tested(self, test: ast.expr) -> Iterator[Reached]:
        names = {dotted(node) for node in ast.walk(test) if isinstance(node, (ast.Name, ast.Attribute))}
        if "__name__" not in names:
            yield (
                "by-version"
                if names & self._flags or _VERSION_CHECK.search(ast.unparse(test))
                else "sometimes"
            )


conditions_of = lru_cache(maxsize=4)(Conditions)  # cached for all checks of one script


def _before(block: ast.AST, node: ast.AST) -> list[ast.stmt]:
    """Return the statements that precede this node in its block."""
    for name in ("body", "orelse", "finalbody"):
        statements = getattr(block, name, ())
        if isinstance(statements, list) and node in statements:
            return statements[: statements.index(node)]
    return []


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Continue))


def _checks_installation(handler: ast.ExceptHandler) -> bool:
    caught = ast.walk(handler.type) if handler.type is not None else ()
    return any(isinstance(node, ast.Name) and node.id in _INSTALLATION_ERRORS for node in caught)


def _catches(item: ast.withitem) -> bool:
    called = item.context_expr
    return isinstance(called, ast.Call) and last_name(called.func) in _CATCHERS
