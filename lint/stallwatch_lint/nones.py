"""Names that a script sets to nothing but ``None``, as far as a look at the one file can tell."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stallwatch_lint.script import Script, bound_by, is_constant

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
# What may keep a line from being reached, or go on where it fails.
_GUARDS = (ast.If, ast.IfExp, ast.BoolOp, ast.While, ast.Try, ast.Match, ast.comprehension)
# Whoever uses these may set any name without its being seen here.
_HIDDEN = {"globals", "locals", "vars", "exec", "eval", "setattr", "__dict__"}


def is_nothing(script: Script, use: ast.expr) -> bool:
    """Whether the expression is a name that holds ``None`` wherever it is used, and nobody asks first.

    Only an assignment in the module or in a function around the use counts. Nothing is said of a name that
    anything else in the file may set, that is tested anywhere, or that is used under a condition.
    """
    if not isinstance(use, ast.Name) or script.names & _HIDDEN:
        return False
    above = {child: node for node in ast.walk(script.tree) for child in ast.iter_child_nodes(node)}
    around = list(_around(use, above))
    if any(isinstance(one, _GUARDS) and not _is_main(one) for one in around):
        return False
    reachable = {id(one) for one in around if isinstance(one, (ast.Module, *_FUNCTIONS))}
    found = False
    for node in ast.walk(script.tree):
        if use.id in bound_by(node) or "*" in bound_by(node) or _tests(node, use.id):
            return False
        if isinstance(node, ast.Name) and node.id == use.id and not isinstance(node.ctx, ast.Load):
            if not _is_none(node, above[node]):
                return False
            scope = next(
                one
                for one in _around(node, above)
                if isinstance(one, (ast.Module, ast.ClassDef, *_FUNCTIONS))
            )
            if id(scope) not in reachable:
                return False
            found = True
    return found


def _around(node: ast.AST, above: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while node in above:
        node = above[node]
        yield node


def _is_none(target: ast.Name, statement: ast.AST) -> bool:
    """Whether the statement gives this name ``None``."""
    if isinstance(statement, ast.Assign):
        return target in statement.targets and is_constant(statement.value, None)
    return (
        isinstance(statement, ast.AnnAssign)
        and statement.target is target
        and is_constant(statement.value, None)
    )


def _tests(node: ast.AST, name: str) -> bool:
    """Whether a condition asks about the name."""
    asked: list[ast.AST] = []
    match node:
        case ast.If() | ast.IfExp() | ast.While() | ast.Assert():
            asked = [node.test]
        case ast.Compare() | ast.BoolOp():
            asked = [node]
        case ast.UnaryOp(op=ast.Not()):
            asked = [node]
        case ast.Match():
            asked = [node.subject]
    return any(isinstance(one, ast.Name) and one.id == name for part in asked for one in ast.walk(part))


def _is_main(node: ast.AST) -> bool:
    """``if __name__ == "__main__":``."""
    return isinstance(node, ast.If) and any(
        isinstance(one, ast.Name) and one.id == "__name__" for one in ast.walk(node.test)
    )
