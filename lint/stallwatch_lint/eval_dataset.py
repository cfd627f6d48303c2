"""A Trainer that is to evaluate and gets nothing to evaluate.

transformers 5.23.0, ``trainer.py``: ``__init__`` raises a ``ValueError`` where ``eval_strategy`` is not
``no`` and ``eval_dataset`` is ``None``; ``get_eval_dataloader`` raises one at an evaluation without any.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stallwatch_lint.diagnostic import Diagnostic, diagnostic
from stallwatch_lint.script import Call, Script, bound_by, dotted, is_constant

_TRAINERS = ("transformers.Trainer", "transformers.Seq2SeqTrainer")
_ARGUMENTS = ("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments")
_STRATEGIES = ("eval_strategy", "evaluation_strategy")
_ARGS, _EVAL_DATASET = 1, 4  # positions


def check_eval_dataset(script: Script) -> Iterator[Diagnostic]:
    """Only calls that show all their arguments, with training arguments that this file makes once."""
    if sets_attribute(script, *_STRATEGIES, "eval_dataset"):
        return
    for call in script.calls:
        if not is_theirs(script, call, *_TRAINERS) or call.open:
            continue
        data = call.argument("eval_dataset", _EVAL_DATASET)
        arguments = made_by(script, call.argument("args", _ARGS))
        if (data is not None and not is_constant(data, None)) or arguments is None:
            continue
        if arguments.open or not is_theirs(script, arguments, *_ARGUMENTS):
            continue
        given = next((one for name in _STRATEGIES if (one := arguments.argument(name)) is not None), None)
        if isinstance(given, ast.Constant) and given.value in ("steps", "epoch"):
            yield diagnostic("eval-dataset-missing", script.at(call), call=call.last, strategy=given.value)


def is_theirs(script: Script, call: Call, *names: str) -> bool:
    """Whether it calls one of these classes, and no name that the file gives to something else as well."""
    return (
        script.full(call.name) in names
        and call.name.partition(".")[0] not in script.stored
        and not any(one.name == call.name for one in script.classes)
    )


def made_by(script: Script, value: ast.expr | None) -> Call | None:
    """The call that makes this object: itself, or the only thing that the file ever assigns to the name."""
    if isinstance(value, ast.Name):
        if any(value.id in bound_by(node) for node in ast.walk(script.tree)):
            return None
        stored = [
            node
            for node in ast.walk(script.tree)
            if isinstance(node, ast.Name) and node.id == value.id and not isinstance(node.ctx, ast.Load)
        ]
        assigned = [
            node.value
            for node in ast.walk(script.tree)
            if isinstance(node, ast.Assign) and [dotted(one) for one in node.targets] == [value.id]
        ]
        if len(stored) != 1 or len(assigned) != 1:
            return None
        value = assigned[0]
    return Call(dotted(value.func), value) if isinstance(value, ast.Call) else None


def sets_attribute(script: Script, *names: str) -> bool:
    """Whether the file sets such an attribute (``args.eval_strategy = "no"``), or may do so unseen."""
    return bool(script.names & {"setattr", "__dict__"}) or any(
        isinstance(node, ast.Attribute) and node.attr in names and not isinstance(node.ctx, ast.Load)
        for node in ast.walk(script.tree)
    )
