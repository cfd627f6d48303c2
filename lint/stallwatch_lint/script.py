"""Represent a training script by its syntax tree: imports, calls, and names. The script is never run."""

from __future__ import annotations

import ast
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from stallwatch_lint.diagnostic import Diagnostic, Place, diagnostic
from stallwatch_lint.newer_python import NewerPython, newer_syntax

Function = ast.FunctionDef | ast.AsyncFunctionDef
_Node = TypeVar("_Node", bound=ast.AST)
Scope = ast.Module | Function | ast.Lambda


@dataclass(frozen=True)
class Call:
    """A call in a script, such as ``trainer.save_model(out)`` with the name ``trainer.save_model``."""

    name: str  #: dotted name; ``?`` for a part that is not a plain name
    node: ast.Call

    @classmethod
    def of(cls, node: ast.Call) -> Call:
        """Return the call that this syntax node represents."""
        return cls(dotted(node.func), node)

    @property
    def last(self) -> str:
        """The name of the called function, without its owner."""
        return self.name.rsplit(".", 1)[-1]

    @property
    def owner(self) -> str:
        """The dotted name of the object on which the method is called, or "" for a plain function."""
        return self.name.rpartition(".")[0]

    @property
    def line(self) -> int:
        """The line number of the call, counted from 1."""
        return self.node.lineno

    @property
    def open(self) -> bool:
        """True if the call has ``*args`` or ``**kwargs``, which can contain arguments of any name."""
        return any(isinstance(argument, ast.Starred) for argument in self.node.args) or any(
            keyword.arg is None for keyword in self.node.keywords
        )

    def argument(self, name: str, position: int | None = None) -> ast.expr | None:
        """Return the argument that is passed by this name or at this position, or `None` if it is missing."""
        for keyword in self.node.keywords:
            if keyword.arg == name:
                return keyword.value
        if position is not None and position < len(self.node.args):
            return self.node.args[position]
        return None

    def constant(self, name: str) -> Any:
        """Return the constant that the call passes as this argument, or ``None`` if it is not a constant."""
        value = self.argument(name)
        return value.value if isinstance(value, ast.Constant) else None


@dataclass(frozen=True)
class Script:
    """A parsed file with its syntax tree."""

    file: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree, starting with the outer nodes."""
        return list(ast.walk(self.tree))

    def of(self, *types: type[_Node]) -> list[_Node]:
        """Return the nodes of these types, starting with the outer nodes."""
        return [node for node in self.nodes if isinstance(node, types)]

    @cached_property
    def names(self) -> frozenset[str]:
        """All names and attributes that the script uses."""
        imported = (alias.name for node in self.of(ast.ImportFrom) for alias in node.names)
        attributes = (node.attr for node in self.of(ast.Attribute))
        return frozenset({*(node.id for node in self.of(ast.Name)), *attributes, *imported})

    @cached_property
    def calls(self) -> list[Call]:
        """All calls in the script, in line order."""
        return sorted(map(Call.of, self.of(ast.Call)), key=lambda call: call.line)

    @cached_property
    def assignments(self) -> list[ast.Assign]:
        """All assignments of the script, in line order."""
        return sorted(self.of(ast.Assign), key=lambda node: node.lineno)

    @cached_property
    def functions(self) -> list[Function]:
        """All functions and methods of the script."""
        return self.of(ast.FunctionDef, ast.AsyncFunctionDef)

    @cached_property
    def imports(self) -> frozenset[str]:
        """Top-level packages imported anywhere in the script."""
        found: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
        return frozenset(found)

    @cached_property
    def strings(self) -> list[tuple[str, int]]:
        """String constants with their line numbers, excluding docstrings and other bare strings."""
        bare = {id(node.value) for node in self.of(ast.Expr)}
        found = (node for node in self.of(ast.Constant) if id(node) not in bare)
        return [(node.value, node.lineno) for node in found if isinstance(node.value, str)]

    def at(self, call: Call) -> Place:
        """Return the location of a call: the file and the line."""
        return self.file, call.line

    def called(self, *last: str) -> Iterator[Call]:
        """Yield the calls to functions and methods with one of these names, regardless of their owner."""
        return (call for call in self.calls if call.last in last)

    @property
    def deepspeed_itself(self) -> bool:
        """True if the script calls ``deepspeed.initialize`` and no library replaces ``auto`` values."""
        return (
            any(self.initializations())
            and not self.imports & {"accelerate", "lightning", "pytorch_lightning"}
            and (not self.names & {"Trainer", "HfDeepSpeedConfig", "HfTrainerDeepSpeedConfig"})
        )

    @property
    def strict_json(self) -> bool:
        """True if transformers or accelerate reads the configuration as strict JSON before DeepSpeed does."""
        readers = {"Trainer", "TrainingArguments", "Accelerator"}
        theirs = self.imports & {"transformers", "accelerate", "trl"} and self.names & readers
        return bool(theirs) and not any(self.initializations())

    def initializations(self) -> Iterator[Call]:
        """Yield the calls to ``deepspeed.initialize``, under any imported name."""
        return (call for call in self.calls if self.full(call.name) == "deepspeed.initialize")

    @cached_property
    def engines(self) -> list[tuple[str, str]]:
        """The names of the model and of the engine for each call to ``deepspeed.initialize``."""
        starts = {id(call.node): call for call in self.initializations()}
        found = []
        for node in self.assignments:
            if (start := starts.get(id(node.value))) is not None:
                model, target = start.argument("model", 1), node.targets[0]
                engine = next(iter(parts(target)), target)
                found.append((dotted(model) if model is not None else "", dotted(engine)))
        return found

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Imported names, each with its full name, as in ``{"T": "transformers.Trainer"}``."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    found[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return found

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """All classes of the script."""
        return self.of(ast.ClassDef)

    @cached_property
    def stored(self) -> frozenset[str]:
        """Plain names to which the script binds anything other than a class or a single import."""
        found = {node.id for node in self.of(ast.Name) if isinstance(node.ctx, ast.Store)}
        imported: dict[str, set[str]] = defaultdict(set)
        for node in self.nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                module = "." * getattr(node, "level", 0) + (getattr(node, "module", None) or "")
                for alias in node.names:  # only the top-level package of an imported module matters
                    source = f"{module.partition('.')[0]}.{alias.name}" if module or alias.asname else ""
                    imported[bound_by(alias)[0] or ""].add(source)
            elif not isinstance(node, (ast.alias, ast.ClassDef)):
                found.update(name for name in bound_by(node) if name)
        return frozenset(found | {name for name, sources in imported.items() if len(sources) > 1})

    def makers(self, value: ast.expr | None) -> list[Call]:
        """Return all calls that can create this object.

        The object is given by an expression, or by a variable to which the script assigns the results of
        calls. Return an empty list if the object might have a different origin.
        """
        values = [value]
        if isinstance(value, ast.Name):
            name = value.id
            stored = [
                node for node in self.of(ast.Name) if node.id == name and not isinstance(node.ctx, ast.Load)
            ]
            values = [node.value for node in self.assignments if [*map(dotted, node.targets)] == [name]]
            if len(stored) != len(values) or any(name in bound_by(node) for node in self.nodes):
                return []
        calls = [Call.of(node) for node in values if isinstance(node, ast.Call)]
        return calls if len(calls) == len(values) else []

    def full(self, name: str) -> str:
        """Return a dotted name with its first part replaced by the full name under which it was imported."""
        first, dot, rest = name.partition(".")
        return self.aliases.get(first, first) + dot + rest


def parse_script(text: str, file: str) -> Script | Diagnostic:
    """Parse a script. Return a diagnostic if Python cannot parse or compile it. The script is never run.

    Compilation finds errors that parsing does not find, such as ``return`` outside a function.

    Raises:
      NewerPython: if the script uses syntax of a later Python version.
    """
    text = text.removeprefix("\ufeff")
    try:
        with warnings.catch_warnings():  # suppresses warnings about invalid escapes in strings
            warnings.simplefilter("ignore")
            tree = ast.parse(text, filename=file)
            compile(tree, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or str(error) or type(error).__name__
        line: int | None = getattr(error, "lineno", None)
        if newer := newer_syntax(text, line, reason):
            raise NewerPython(file, line, *newer) from None
        return diagnostic(
            "script-unreadable",
            (file, line),
            severity="fails" if isinstance(error, (SyntaxError, ValueError)) else "likely",
            reason=reason,
        )
    return Script(file, tree)


def dotted(node: ast.expr) -> str:
    """Return the dotted name of an expression (``a.b.c``), with ``?`` for a part that is not a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name: ``c`` for ``a.b.c``."""
    return dotted(node).rpartition(".")[2]


def parts(target: ast.expr) -> list[ast.expr]:
    """Return the elements of a target such as ``a, b``, or a list with only the target for other targets."""
    return target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]


def bound_by(node: ast.AST) -> tuple[str | None, ...]:
    """Return the names that a node binds without an assignment, such as names of functions and imports.

    ``*`` represents any name, as after ``from module import *``.
    """
    match node:
        case ast.Global() | ast.Nonlocal():
            return tuple(node.names)
        case ast.alias():
            return (node.asname or node.name.partition(".")[0],)
        case ast.arg():
            return (node.arg,)
        case ast.MatchMapping():
            return (node.rest,)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.ExceptHandler():
            return (node.name,)
        case ast.MatchAs() | ast.MatchStar():
            return (node.name,)
    return ()


def is_own(script: Script, name: str) -> bool:
    """Return whether the script itself defines or assigns this name, or the first part of a dotted name."""
    return name.partition(".")[0] in script.stored or any(node.name == name for node in script.classes)


def is_constant(node: ast.expr | None, value: object) -> bool:
    """Return whether the expression is the constant ``value``, which is ``True``, ``False``, or ``None``."""
    return isinstance(node, ast.Constant) and node.value is value


def scopes(tree: ast.Module) -> Iterator[tuple[Scope, list[ast.AST]]]:
    """Yield the module and each function, each with its nodes but without the nodes of nested functions."""
    waiting: list[Scope] = [tree]
    while waiting:
        scope = waiting.pop()
        found: list[ast.AST] = []
        inside: list[ast.AST] = list(ast.iter_child_nodes(scope))
        while inside:
            node = inside.pop()
            found.append(node)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                waiting.append(node)
            else:
                inside += ast.iter_child_nodes(node)
        yield scope, found
