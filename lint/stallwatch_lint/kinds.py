"""Find the expressions in a script that refer to a Trainer or an Accelerator."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Literal, get_args

from stallwatch_lint.names import Names
from stallwatch_lint.script import Function, Script, dotted, last_name

Kind = Literal["trainer", "accelerator", "lightning", "other", ""]
_LIGHTNING = ("lightning", "pytorch_lightning")  #: packages whose Trainer does not have ``save_model``

#: Base classes that do not inherit from a Trainer. A class with only these bases is not a Trainer.
_BARE = ("object", "ABC", "Protocol", "Module")
#: Number of passes over the script. Several passes are needed, because functions can use objects that other
#: functions return.
_ROUNDS = 3


class Kinds:
    """The kind of each object in a script, such as a Trainer or an Accelerator.

    Objects are tracked from their constructors through assignments and through calls to the script's
    functions.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.names = Names(script.tree)
        self._classes = {node.name: node for node in script.classes}
        self._functions = {node.name: node for node in script.functions}
        # Kind of the object that each function of the file returns, by the function's name.
        self._made: dict[str, Kind] = {}
        assigned = [
            node for node in script.nodes if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr))
        ]
        assigned.sort(key=lambda node: node.lineno)
        calls = [call.node for call in script.calls if call.last in self._functions]
        for function in script.functions:
            for arg in _parameters(function):
                if arg.annotation is not None and (kind := self._of_class(arg.annotation)):
                    self.names.give_parameter(function, arg.arg, kind)
        for _ in range(_ROUNDS):
            for node in assigned:
                self._assign(node)
            for function in script.functions:
                self._returns(function)
            for call in calls:
                self._passes(call)

    def of(self, node: ast.expr) -> Kind:
        """Return the kind of the object to which the expression evaluates, or "" if it is unknown."""
        kind = self._known(node)
        if kind:
            return kind
        last = last_name(node).lower()
        if "trainer" in last:
            return "trainer"
        return "accelerator" if "accelerat" in last else ""

    def is_accelerator(self, node: ast.expr) -> bool:
        """Return whether the object is an Accelerator.

        If the script does not show how the object is created, the name of the object determines the result.
        """
        return (self._known(node) or last_name(node).lower()) == "accelerator"

    def of_owner(self, call: ast.Call) -> Kind:
        """Return the kind of the object on which the method is called."""
        return self.of(call.func.value) if isinstance(call.func, ast.Attribute) else ""

    def _known(self, node: ast.expr) -> Kind:
        if isinstance(node, ast.Call):
            last = last_name(node.func)
            return self._of_class(node.func) or self._made.get(last, "")
        if isinstance(node, ast.IfExp):
            return self._known(node.body) or self._known(node.orelse)
        if isinstance(node, ast.NamedExpr):
            return self._known(node.value)
        if dotted(node) == "self" and (owner := self.names.class_of(node)) is not None:
            return self._of_defined(owner)
        meaning = self.names.meaning(node)
        return meaning if meaning in get_args(Kind) else ""  # type: ignore[return-value]

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for element, value in pairs:
                kind = self._known(value) if value is not None else ""
                if kind:
                    self.names.give(element, node, kind)

    def _returns(self, function: Function) -> None:
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None and (kind := self._known(node.value)):
                self._made[function.name] = kind

    def _passes(self, call: ast.Call) -> None:
        """Assign the kinds of the arguments in this call to the parameters of the called function."""
        function = self._functions[last_name(call.func)]
        taken = _parameters(function)
        if isinstance(call.func, ast.Attribute) and taken and taken[0].arg in ("self", "cls"):
            taken = taken[1:]
        given = [(arg.arg, value) for arg, value in zip(taken, call.args, strict=False)]
        given += [(keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg]
        for name, value in given:
            if kind := self._known(value):
                self.names.give_parameter(function, name, kind)

    def _of_class(self, node: ast.expr) -> Kind:
        quoted = isinstance(node, ast.Constant) and isinstance(node.value, str)  # annotations can be quoted
        name = str(node.value) if quoted and isinstance(node, ast.Constant) else dotted(node)
        if name in self._classes:
            return self._of_defined(self._classes[name])
        full = self._script.full(name)
        last = full.rpartition(".")[2]
        if last.endswith("Trainer") and last[0].isupper():
            return "lightning" if full.partition(".")[0] in _LIGHTNING else "trainer"
        return "accelerator" if last == "Accelerator" else ""

    def _of_defined(self, node: ast.ClassDef, depth: int = 0) -> Kind:
        """Return the kind of a class that the script defines, as determined by its base classes."""
        kinds: list[Kind] = []
        for base in node.bases:
            inner = self._classes.get(dotted(base))
            if inner is not None and inner is not node and depth < _ROUNDS:
                kinds.append(self._of_defined(inner, depth + 1))
            elif last_name(base) in _BARE:
                kinds.append("other")
            elif inner is None:
                kinds.append(self._of_class(base))
        known = next((kind for kind in kinds if kind not in ("other", "")), None)
        return known or ("other" if all(kinds) else "")


kinds_of = lru_cache(maxsize=4)(Kinds)  # cached for all checks of one script


def _parameters(function: Function) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
