"""Track what each name in a script refers to, until a different value is assigned to the name.

Names are tracked line by line, and separately for each function.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from stallwatch_lint.script import Function, bound_by, dotted, scopes

_Place = tuple[int, str]  # the ID of a scope or class, and a name

# Nodes that bind names, in addition to assignments.
_BINDING = (ast.alias, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_Binding = ast.expr | ast.alias | Function | ast.ClassDef


class Names:
    """The meanings of the names in a script, and the lines where each meaning begins and ends.

    A meaning from a later line replaces the meaning from an earlier line. Control flow is ignored, with one
    exception: an assignment in one branch of an ``if`` does not affect the other branch. A parameter has a
    meaning only if `give_parameter` assigns one. An attribute such as ``self.model`` has the same meaning in
    its entire class.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._scope, self._bound, self._class, self._branches, stored = _structure(tree)
        # For each scope and name, the changes of meaning: the line at which the meaning begins, the
        # meaning, and the assigning node.
        self._events: dict[_Place, list[tuple[int, str, ast.AST]]] = defaultdict(list)
        for name, node in stored:
            end = node.lineno if isinstance(node, _BINDING) else node.end_lineno
            self._events[self._place(node, name)].append((end or node.lineno, "", node))

    def give(self, target: ast.expr, by: ast.stmt | ast.expr, meaning: str) -> None:
        """Record the meaning that the name `target` has after `by`. Ignore a target that is not a name."""
        name = dotted(target)
        if "?" in name:
            return
        events = self._events[self._place(target, name)]
        first, last = by.lineno, by.end_lineno or by.lineno
        events[:] = [event for event in events if not first <= event[0] <= last]
        events.append((last, meaning, by))

    def give_parameter(self, function: Function, name: str, meaning: str) -> None:
        """Record the meaning that a parameter has from the start of its function."""
        events = self._events[(id(function), name)]
        events[:] = [event for event in events if event[2] is not function]
        events.append((function.lineno, meaning, function))

    def class_of(self, node: ast.expr) -> ast.ClassDef | None:
        """Return the innermost class that contains the node."""
        return self._class.get(id(node))

    def meaning(self, node: ast.expr, among: Collection[str] = ()) -> str:
        """Return the meaning of the name in a node, or "" if the meaning is unknown.

        If `among` is not empty, meanings that are not in `among` count as unknown.
        """
        name = dotted(node)
        if "?" in name:
            return ""
        known = [
            (line, meaning if not among or meaning in among else "", by)
            for line, meaning, by in self._events.get(self._place(node, name), ())
            if line < node.lineno
        ]
        for _, meaning, by in sorted(known, key=lambda event: event[0], reverse=True):
            if meaning and self._apart(by, node):
                continue
            if meaning:
                return meaning
            if not any(given and self._apart(by, other) for _, given, other in known):
                return ""
        return ""

    def _place(self, node: ast.AST, name: str) -> _Place:
        base = name.partition(".")[0]
        if base in ("self", "cls") and "." in name and id(node) in self._class:
            return id(self._class[id(node)]), name
        scope = self._scope.get(id(node), self._tree)
        while scope is not self._tree and base not in self._bound[id(scope)]:
            scope = self._scope[id(scope)]
        return id(scope), name

    def _apart(self, first: ast.AST, other: ast.AST) -> bool:
        """Return whether two nodes are in different branches of the same ``if`` statement."""
        theirs = self._branches[id(other)]
        return any((at, not is_else) in theirs for at, is_else in self._branches[id(first)])


class _Structure(NamedTuple):
    """The scopes, classes, and branches of a syntax tree, each indexed by the ``id`` of a node."""

    scope: dict[int, ast.AST]
    bound: dict[int, set[str]]  #: plain names bound in each scope
    classes: dict[int, ast.ClassDef]  #: the innermost class that contains each node
    branches: dict[int, set[tuple[int, bool]]]
    stored: list[tuple[str, _Binding]]  #: names that are assigned or imported, with the binding node


@lru_cache(maxsize=4)
def _structure(tree: ast.Module) -> _Structure:
    """Return the structure of a tree. The result is cached for all checks of one script."""
    found = _Structure({}, defaultdict(set), {}, defaultdict(set), [])
    outer: dict[int, set[str]] = defaultdict(set)
    methods = {
        id(statement) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for statement in node.body
    }
    own_names = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.comprehension)
        for inner in ast.walk(node.target)
    }
    for scope, nodes in scopes(tree):
        for node in nodes:
            found.scope[id(node)] = scope
            if isinstance(node, ast.arg):
                found.bound[id(scope)].add(node.arg)
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                outer[id(scope)] |= set(node.names)
            elif isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
                if id(node) in own_names or "?" in dotted(node):
                    continue
                found.stored.append((dotted(node), node))
                if isinstance(node, ast.Name):
                    found.bound[id(scope)].add(node.id)
            elif isinstance(node, _BINDING) and id(node) not in methods:
                for name in bound_by(node):
                    if name and name != "*":
                        found.stored.append((name, node))
                        found.bound[id(scope)].add(name)
    for scope_id, names in outer.items():
        found.bound[scope_id] -= names
    for node in ast.walk(tree):  # Outer classes come first, so inner classes overwrite them.
        if isinstance(node, ast.ClassDef):
            found.classes.update((id(inner), node) for inner in ast.walk(node))
        elif isinstance(node, ast.If):
            for is_else, body in enumerate((node.body, node.orelse)):
                for inner in ast.walk(ast.Module(body, [])):
                    found.branches[id(inner)].add((id(node), bool(is_else)))
    return found
