"""Find the keyword arguments that a class accepts, without importing the package that defines the class."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stallwatch_lint.script import Call, dotted, is_constant, last_name

MOST_STEPS = 12  #: maximum number of steps from module to module and from class to base class


class Source(NamedTuple):
    """The source text of a module."""

    text: str
    package: bool  #: True for an ``__init__.py``, whose relative imports start at its own folder


#: A function that maps a module's dotted name to the module's source, or to ``None`` if it is unavailable.
Read = Callable[[str], "Source | None"]


class Signatures:
    """A reader that finds the arguments of classes in the source of the installed packages.

    The reader follows a class from its import to its definition and to its base classes. The result is
    ``None`` if it is uncertain because of ``**kwargs``, a metaclass, a decorator, or an unknown base class.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._trees: dict[str, tuple[ast.Module, bool] | None] = {}
        self._known: dict[str, frozenset[str] | None] = {}

    def taken(self, full: str) -> frozenset[str] | None:
        """Return the arguments of a class such as ``trl.SFTConfig``, or `None` if they are uncertain."""
        if full not in self._known:
            self._known[full] = self._taken(self._find(full, 0), 0)
        return self._known[full]

    def _find(self, full: str, steps: int) -> tuple[str, ast.ClassDef] | None:
        module, _, name = full.rpartition(".")
        parsed = self._tree(module) if module and steps < MOST_STEPS else None
        if parsed is None:
            return None
        tree, package = parsed
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return module, node
        for there in _imported(tree, name, module, package):
            if found := self._find(there, steps + 1):
                return found
        return None

    def _tree(self, module: str) -> tuple[ast.Module, bool] | None:
        if module not in self._trees:
            source = self._read(module)
            try:
                self._trees[module] = source and (ast.parse(source.text), source.package)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self._trees[module] = None
        return self._trees[module]

    def _taken(self, found: tuple[str, ast.ClassDef] | None, steps: int) -> frozenset[str] | None:
        if found is None or steps > MOST_STEPS:
            return None
        module, node = found
        methods = {
            statement.name: statement for statement in node.body if isinstance(statement, ast.FunctionDef)
        }
        if node.keywords or methods.keys() & {"__new__", "__init_subclass__"}:
            return None
        if init := methods.get("__init__"):
            return _of_function(init)
        if _dataclass(node):
            return self._fields(found, steps)
        return self._taken(self._base(module, node.bases[0], steps), steps + 1) if node.bases else None

    def _fields(self, found: tuple[str, ast.ClassDef] | None, steps: int) -> frozenset[str] | None:
        if found is None or steps > MOST_STEPS:
            return None
        module, node = found
        fields = frozenset(_own_fields(node)) if _dataclass(node) else frozenset()
        for base in node.bases:
            if dotted(base) in ("object", "ABC"):
                continue
            inherited = self._fields(self._base(module, base, steps), steps + 1)
            if inherited is None:
                return None
            fields |= inherited
        return fields

    def _base(self, module: str, base: ast.expr, steps: int) -> tuple[str, ast.ClassDef] | None:
        name = dotted(base)
        return self._find(f"{module}.{name}" if "." not in name else name, steps)


def _imported(tree: ast.Module, name: str, module: str, package: bool) -> Iterator[str]:
    """Yield the full names that a module can import as `name`, including imports for type checkers."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            if (alias.asname or alias.name) != name:
                continue
            parts = module.split(".")
            up = node.level - 1 if package else node.level
            start = parts[: len(parts) - up] if node.level else []
            yield ".".join([*start, *([node.module] if node.module else []), alias.name])


def _of_function(init: ast.FunctionDef) -> frozenset[str] | None:
    taken = frozenset(argument.arg for argument in [*init.args.args, *init.args.kwonlyargs]) - {"self"}
    if init.args.kwarg is not None:
        return None
    for decorator in init.decorator_list:
        name = last_name(decorator.func) if isinstance(decorator, ast.Call) else ""
        if not name.lstrip("_").startswith("deprecate"):
            return None
        # deprecate_kwarg of transformers and _deprecate_arguments of huggingface_hub accept old names.
        taken |= {
            node.value
            for node in ast.walk(decorator)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    return taken


def _dataclass(node: ast.ClassDef) -> bool:
    names = (
        decorator.func if isinstance(decorator, ast.Call) else decorator for decorator in node.decorator_list
    )
    return any(last_name(name) == "dataclass" for name in names)


def _own_fields(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or "ClassVar" in ast.unparse(statement.annotation):
            continue
        init = Call.of(statement.value).argument("init") if isinstance(statement.value, ast.Call) else None
        if not is_constant(init, False):
            yield dotted(statement.target)
