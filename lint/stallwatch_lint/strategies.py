"""When a trainer evaluates and saves, beside the best model that it is to load at its end."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stallwatch_lint.diagnostic import Diagnostic, diagnostic
from stallwatch_lint.script import Call, Script, is_constant

#: as ``TrainingArguments`` of transformers 5.23.0 has them (``training_args.py``)
DEFAULTS = {"eval_strategy": "no", "save_strategy": "steps", "save_steps": 500, "logging_steps": 500}
_OWN = ("TrainingArguments", "Seq2SeqTrainingArguments")
_STRATEGIES = ("no", "steps", "epoch")


def check_strategies(script: Script) -> Iterator[Diagnostic]:
    """``load_best_model_at_end`` where evaluation and saving do not go together.

    transformers 4.48.3 to 5.23.0, ``training_args.py`` (``__post_init__``): the two strategies must be
    equal, but for ``save_strategy="best"``, and ``save_steps`` a multiple of ``eval_steps``, which are
    ``logging_steps`` where they are not given. Only what stands there as a literal is compared, and defaults
    are known of transformers' own classes alone.
    """
    if not script.imports & {"transformers", "trl"}:
        return
    for call in script.calls:
        if call.last.endswith(("TrainingArguments", "Config")) and is_constant(
            call.argument("load_best_model_at_end"), True
        ):
            yield from _of_call(script, call)


def _of_call(script: Script, call: Call) -> Iterator[Diagnostic]:
    # 4.48.3 takes both names, 4.57.6 the new one alone
    older = call.argument("eval_strategy") is None and call.argument("evaluation_strategy") is not None
    evaluates = _strategy(call, "evaluation_strategy" if older else "eval_strategy")
    saves = _strategy(call, "save_strategy")
    if evaluates is None or saves is None:
        return
    if evaluates != saves:
        yield diagnostic("best-model-strategies", script.at(call), evaluates=evaluates, saves=saves)
    elif evaluates == "steps":
        every, kept = _steps(call, "eval_steps"), _steps(call, "save_steps")
        if every is not None and kept is not None and kept % every:
            yield diagnostic("best-model-strategies-steps", script.at(call), every=every, kept=kept)


def _strategy(call: Call, name: str) -> str | None:
    """``"steps"`` of ``"steps"`` and ``IntervalStrategy.STEPS``; ``None`` where it cannot be told."""
    value = _given(call, name)
    if isinstance(value, ast.Attribute):
        value = value.attr.lower()
    elif isinstance(value, ast.Constant):
        value = value.value
    return value if value in _STRATEGIES else None


def _steps(call: Call, name: str) -> int | None:
    """Whole steps; ``None`` for a share of all steps and for what cannot be told."""
    if name == "eval_steps" and (call.argument(name) is None or is_constant(call.argument(name), None)):
        name = "logging_steps"
    value = _given(call, name)
    if isinstance(value, ast.Constant):
        value = value.value
    return value if type(value) is int and value > 0 else None


def _given(call: Call, name: str) -> object:
    """The expression that the call gives; else the default, where it is known that it counts."""
    value = call.argument(name)
    if value is not None:
        return value
    own = call.last in _OWN and not call.open and not call.node.args[1:]
    return DEFAULTS.get(name) if own else None
