"""A model that is put into evaluation mode and then trained."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from packaging.version import Version

from stallwatch_lint.diagnostic import Diagnostic, diagnostic
from stallwatch_lint.script import Call, Script, dotted, is_constant, scopes


def check_eval_mode(script: Script, stage: int | None, deepspeed: Version | None) -> Iterator[Diagnostic]:
    """``model.eval()`` before a backward pass of the same model in the same function, and no ``train()``
    anywhere.

    Only the model of an engine counts whose own ``backward`` is called: reference models, teachers and
    reward models stay in evaluation mode rightly. Up to 0.15.3 ZeRO-3 asserts that each module is in training
    mode in backward (``runtime/zero/parameter_offload.py``); since 0.15.4 nothing is said and dropout stays
    off.
    """
    engines = _engines(script)
    pulled = {call.owner for call in script.called("backward")}
    trained = {name for names in engines if names & pulled for name in names}
    back_on = {
        call.owner for call in script.called("train") if not is_constant(call.argument("mode", 0), False)
    }
    fatal = stage == 3 and deepspeed is not None and deepspeed < Version("0.15.4")
    for _, nodes in scopes(script.tree):
        calls = [Call(dotted(node.func), node) for node in nodes if isinstance(node, ast.Call)]
        backward = max((call.line for call in calls if call.last == "backward"), default=0)
        for call in calls:
            if call.last != "eval" or not call.owner or call.line > backward or call.owner not in trained:
                continue
            aliases = {call.owner}.union(*(names for names in engines if call.owner in names))
            if not aliases & back_on:
                yield diagnostic(
                    "trained-in-eval-mode",
                    script.at(call),
                    severity="fails" if fatal else "advice",
                    call=call.name,
                    model=call.owner,
                )


def _engines(script: Script) -> list[set[str]]:
    """Each engine's names: the variable that it is assigned to, and the model that it was made of."""
    found = []
    made = {id(call.node): call for call in script.initializations()}
    for node in ast.walk(script.tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and id(node.value) in made):
            continue
        model = made[id(node.value)].argument("model", 1)
        target = node.targets[0]
        first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
        found.append({dotted(one) for one in (model, first) if one is not None} - {"?"})
    return found
