"""Find loss terms that are sums over a model's parameters. Such terms fail under ZeRO-3.

ZeRO-3 partitions the parameters, so they are empty while their module does not run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stallwatch_lint.diagnostic import Diagnostic, diagnostic
from stallwatch_lint.dsconfig import number
from stallwatch_lint.facts import CALLS
from stallwatch_lint.partitioned import models_of
from stallwatch_lint.run import Run
from stallwatch_lint.script import Script, dotted, last_name, scopes

_PERSISTENT = 1e5  #: the default of ``stage3_param_persistence_threshold``


def check_dummy_loss(script: Script, run: Run) -> Iterator[Diagnostic]:
    """Find loss terms such as ``0.0 * sum(p.sum() for p in model.parameters())``, including sums in loops.

    Parameters with at most ``stage3_param_persistence_threshold`` elements are not partitioned (DeepSpeed
    0.19.8), so a sum over a small part of a model can work. A term is reported only if it is multiplied by
    zero or assigned to a loss variable. A variable counts as a loss if it is named for a loss or if
    ``backward`` is called on it. A product with zero has no purpose except in a loss. A sum that is used only
    for a log line is also wrong under ZeRO-3, but it does not stop the run. In a ``forward``, the parameters
    can belong to the running module and are then present, so the severity is only "likely". According to
    tests, DeepSpeed 0.15.3 and 0.19.8 fail in the first backward pass.
    """
    config = run.config
    if config is None or config.stage != 3:
        return
    threshold = number(config.get("zero_optimization", "stage3_param_persistence_threshold"))
    persistent = _PERSISTENT if threshold is None else threshold
    makers = frozenset(_makers(script))
    models = models_of(script)
    for scope, nodes in scopes(script.tree):
        if any(_gathers(node) for node in ast.walk(scope)):
            continue
        pulled = [expression for node in nodes for expression in _pulled_expressions(node)]
        losses = {expression.id for expression in pulled if isinstance(expression, ast.Name)}
        seen: set[int] = set()
        added = [pair for node in nodes for pair in _looped(node)]
        looped = {id(statement) for name, statement in added if _is_loss(name, losses)}
        terms = {name for name, _ in added if not _is_loss(name, losses)}
        terms.update(name for node in nodes for name in _assigned_term(node, makers, losses))
        owners = [owner for node in nodes if (owner := _owner_of_parameters(node)) is not None]
        forward = isinstance(scope, ast.FunctionDef) and scope.name == "forward"
        # In a `forward`, `self.parameters()` belong to the running module, so the parameters can be present.
        of_running_module = forward and any(dotted(owner) == "self" for owner in owners)
        # Some parameters of a whole model are large enough to be partitioned.
        whole = any(last_name(owner) in ("model", "engine") or models.is_model(owner) for owner in owners)
        sure = not of_running_module and (whole or not persistent)
        for node in nodes:
            matched = (
                id(node) in looped
                or _adds_to_loss(node, terms, makers, losses)
                or _zeroed(node, terms, makers)
                or any(_sums_parameters(expression, makers) for expression in _pulled_expressions(node))
            )
            line = getattr(node, "lineno", 1)
            if matched and line not in seen:
                seen.add(line)
                yield diagnostic("dummy-loss", (script.file, line), severity="fails" if sure else "likely")


def _is_loss(name: str, losses: set[str]) -> bool:
    return "loss" in name.lower() or name in losses


def _pulled_expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield expressions for which a backward pass is called, such as ``loss`` in ``loss.backward()``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
        yield node.func.value
        yield from node.args[:1]


def _makers(script: Script) -> Iterator[str]:
    """Yield names of functions and methods (``self.name``) that return a sum over ungathered parameters."""
    methods = {id(statement) for node in script.classes for statement in node.body}
    for function in script.functions:
        inner = list(ast.walk(function)) if isinstance(function, ast.FunctionDef) else []
        returned = [
            statement.value
            for statement in inner
            if isinstance(statement, ast.Return) and statement.value is not None
        ]
        if any(map(_sums_parameters, returned)) and not any(map(_gathers, inner)):
            yield f"self.{function.name}" if id(function) in methods else function.name


def _zeroed(node: ast.AST, terms: set[str], makers: frozenset[str]) -> bool:
    """Return whether the node multiplies a sum over parameters by zero, as in ``0.0 * extra``.

    The only purpose of such a term is to use each parameter in the loss.
    """
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    for zero, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(zero, ast.Constant) and type(zero.value) in (int, float) and zero.value == 0:
            return _sums_parameters(other, makers) or (isinstance(other, ast.Name) and other.id in terms)
    return False


def _assigned_term(node: ast.AST, makers: frozenset[str], losses: set[str]) -> Iterator[str]:
    """Yield the variables, other than losses, to which this statement assigns a sum over parameters."""
    if isinstance(node, ast.Assign) and _sums_parameters(node.value, makers):
        for target in node.targets:
            if isinstance(target, ast.Name) and not _is_loss(target.id, losses):
                yield target.id


def _looped(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield the name of each sum that a loop over parameters builds, and the statement that adds to it."""
    loop = _parameter_loop(node.target, node.iter) if isinstance(node, ast.For) else ""
    for inner in ast.walk(node) if loop else ():
        if isinstance(inner, ast.AugAssign):
            target, parts = dotted(inner.target), [inner.value]
        elif isinstance(inner, ast.Assign) and len(inner.targets) == 1:
            target, parts = dotted(inner.targets[0]), list(_arithmetic(inner.value))
            if target not in map(dotted, parts):
                continue  # the variable has a new value for each parameter, so it is not a sum
        else:
            continue
        if any(_reduces(part, loop) for part in parts):
            yield target.rsplit(".", 1)[-1], inner


def _adds_to_loss(node: ast.AST, terms: set[str], makers: frozenset[str], losses: set[str]) -> bool:
    if isinstance(node, ast.Assign):
        targets = [dotted(target) for target in node.targets]
    elif isinstance(node, ast.AugAssign):
        targets = [dotted(node.target)]
    else:
        return False
    if not any(_is_loss(target.rsplit(".", 1)[-1], losses) for target in targets):
        return False
    if _sums_parameters(node.value, makers):
        return True
    # `loss = loss + 0 * extra` adds the term. `loss = model(extra).loss` does not add the term, because it
    # is not arithmetic.
    return any(isinstance(part, ast.Name) and part.id in terms for part in _arithmetic(node.value))


def _arithmetic(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        yield from _arithmetic(node.left)
        yield from _arithmetic(node.right)
    else:
        yield node


def _sums_parameters(expression: ast.expr, makers: frozenset[str] = frozenset()) -> bool:
    """Return whether a sum over parameters is a term or a factor of the expression.

    Such a sum is ``sum(p.sum() for p in x.parameters())``, or a call to one of the functions in `makers`.
    """
    for part in _arithmetic(expression):
        while (  # skips reductions such as torch.stack([…]).sum()
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and part.func.attr in CALLS.reductions
            and isinstance(part.func.value, ast.Call)
        ):
            part = part.func.value
        if not isinstance(part, ast.Call):
            continue
        if dotted(part.func) in makers:
            return True
        if last_name(part.func) not in ("sum", "stack", "cat"):
            continue
        for argument in part.args:
            if isinstance(argument, (ast.GeneratorExp, ast.ListComp)):
                first = argument.generators[0]
                loop = _parameter_loop(first.target, first.iter)
                if loop and _reduces(argument.elt, loop):
                    return True
    return False


def _owner_of_parameters(node: ast.AST) -> ast.expr | None:
    """Return the node for ``model`` in ``model.parameters()`` or ``model.named_parameters()``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value if node.func.attr in ("parameters", "named_parameters") else None
    return None


def _parameter_loop(target: ast.expr, over: ast.expr) -> str:
    """Return the loop variable of a loop over a module's parameters, or an empty string for other loops."""
    if _owner_of_parameters(over) is None:
        return ""
    if isinstance(over, ast.Call) and last_name(over.func) == "named_parameters":
        target = target.elts[1] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else over
    return target.id if isinstance(target, ast.Name) else ""


def _reduces(expression: ast.expr, variable: str) -> bool:
    """Return whether the expression calculates a single number from a parameter and keeps the gradient."""
    attributes = {node.attr for node in ast.walk(expression) if isinstance(node, ast.Attribute)}
    uses = any(isinstance(node, ast.Name) and node.id == variable for node in ast.walk(expression))
    return uses and bool(attributes & CALLS.reductions) and not attributes & CALLS.valueless


def _gathers(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "GatheredParameters"
