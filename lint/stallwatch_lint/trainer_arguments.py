"""Check for training arguments that transformers or TRL rejects, alone or with DeepSpeed settings.

Sources in transformers 5.23.0: ``training_args.py`` (``__post_init__``) accepts only one of fp16 and bf16.
``integrations/deepspeed.py`` (``trainer_config_process``) compares the configuration with the arguments,
and ``trainer_config_finalize`` raises an error when training begins. In ``trainer.py``, ``__init__`` raises
a ``ValueError`` if ``eval_strategy`` is not ``no`` and ``eval_dataset`` is ``None``.
``get_eval_dataloader`` raises a ``ValueError`` if an evaluation has no dataset.

Sources in trl 1.16.0: ``trainer/grpo_config.py`` and ``rloo_config.py`` (``__post_init__``). The batch size
is ``generation_batch_size``, or by default ``per_device_train_batch_size * world_size *
steps_per_generation``. By default, ``steps_per_generation`` is ``gradient_accumulation_steps``.
``num_generations`` must divide the batch size and must be at least 2.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from stallwatch_lint.diagnostic import Diagnostic, Severity, diagnostic
from stallwatch_lint.dsconfig import AUTO, DsConfig
from stallwatch_lint.facts import TRAINERS
from stallwatch_lint.run import Run
from stallwatch_lint.script import Call, Script, is_constant, is_own

#: Classes that transformers itself defines. Other classes can have different defaults.
_OWN = ("TrainingArguments", "Seq2SeqTrainingArguments")


def check_training_arguments(script: Script, run: Run) -> Iterator[Diagnostic]:
    """Find settings that differ from the DeepSpeed configuration, and calls that enable both fp16 and bf16.

    Only literal values are compared. A call that names a different configuration file is skipped. A call
    that names no file can still use this file (``accelerate launch``), but its arguments can also be
    changed later. A difference in such a call is therefore only a likely problem.
    """
    if not script.imports & {"transformers", "trl"}:
        return
    for call in _settings(script):
        if call.constant("fp16") is True and call.constant("bf16") is True:
            yield diagnostic("fp16-and-bf16-arguments", script.at(call), call=call.last)
        if run.config is not None and not run.config.accelerate and _trains(call):
            yield from _compared(script, call, run.config)


def _settings(script: Script) -> Iterator[Call]:
    """Yield the calls that create training arguments, as identified by the names of the called classes."""
    return (call for call in script.calls if call.last.endswith(("TrainingArguments", "Config")))


def _trains(call: Call) -> bool:
    """Return whether the call creates the settings of a trainer (``SFTConfig``) rather than of a model."""
    trainers = ("deepspeed", "per_device_train_batch_size")
    return call.last.endswith("TrainingArguments") or any(
        call.argument(name) is not None for name in trainers
    )


def _compared(script: Script, call: Call, config: DsConfig) -> Iterator[Diagnostic]:
    of_transformers = call.last in _OWN
    file = named if isinstance(named := call.constant("deepspeed"), str) else None
    if file is not None and PurePath(file).name != PurePath(config.file).name:
        return
    for key, argument in TRAINERS.compared.items():
        value = config.get(*key.split("."))
        if value is None or value == AUTO or isinstance(value, str):
            continue
        given = call.argument(argument)
        if given is None and (not of_transformers or call.open or call.node.args[1:]):
            continue
        wanted = TRAINERS.defaults[argument] if given is None else _literal(given)
        excuse = TRAINERS.excuses.get(argument)
        if wanted is None or value == wanted or (excuse and call.argument(excuse) is not None):
            continue
        yield diagnostic(
            f"arguments-differ-from-config{'-default' if given is None else ''}",
            script.at(call),
            severity="likely" if file is None else "fails",
            key=key,
            value=str(value),
            argument=argument,
            wanted=str(wanted),
        )


def _literal(node: ast.expr) -> Any:
    """Return the number or boolean that the node represents, or ``None`` for any other node."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, (bool, int, float)) else None


_INTERVALS = ("no", "steps", "epoch")


def check_best_model(script: Script, run: Run) -> Iterator[Diagnostic]:
    """Find calls that set both ``save_only_model`` and ``load_best_model_at_end``, an error under DeepSpeed.

    Source: ``trainer.py`` of transformers 5.23.0. Releases 4.38 and later raise this error.
    """
    for call in _settings(script) if run.config is not None else ():
        if call.constant("save_only_model") is True and call.constant("load_best_model_at_end") is True:
            yield diagnostic("best-model-without-optimizer", script.at(call))


def check_strategies(script: Script, _run: Run) -> Iterator[Diagnostic]:
    """Find calls with ``load_best_model_at_end`` whose evaluation and saving strategies are inconsistent.

    Sources: transformers 4.48.3 to 5.23.0, ``training_args.py`` (``__post_init__``). The two strategies must
    be equal, except for ``save_strategy="best"``. With the strategy ``steps``, ``save_steps`` must be a
    multiple of ``eval_steps``, which defaults to ``logging_steps``. Only literals are compared. Defaults are
    known only for the classes of transformers.
    """
    if not script.imports & {"transformers", "trl"}:
        return
    for call in _settings(script):
        if call.constant("load_best_model_at_end") is not True:
            continue
        # transformers 4.48.3 accepts both names, but 4.57.6 accepts only the new name.
        older = call.argument("eval_strategy") is None and call.argument("evaluation_strategy") is not None
        evaluates = _strategy(call, "evaluation_strategy" if older else "eval_strategy")
        saves = _strategy(call, "save_strategy")
        if evaluates is None or saves is None:
            continue
        if evaluates != saves:
            yield diagnostic("best-model-strategies", script.at(call), evaluates=evaluates, saves=saves)
        elif evaluates == "steps":
            every, kept = _steps(call, "eval_steps"), _steps(call, "save_steps")
            if every is not None and kept is not None and kept % every:
                yield diagnostic("best-model-strategies-steps", script.at(call), every=every, kept=kept)


def _strategy(call: Call, name: str) -> str | None:
    """Return the strategy that an argument names: ``steps`` for ``"steps"`` and ``IntervalStrategy.STEPS``.

    Return ``None`` if the script does not show the strategy.
    """
    named = call.argument(name)
    value = named.attr.lower() if isinstance(named, ast.Attribute) else _given(call, name)
    return value if value in _INTERVALS else None


def _steps(call: Call, name: str) -> int | None:
    """Return the number of steps that an argument of a call specifies.

    Return ``None`` if the number is unknown or is a fraction of the total number of steps. If
    ``eval_steps`` is not set, the value of ``logging_steps`` applies.
    """
    if name == "eval_steps" and (call.argument(name) is None or is_constant(call.argument(name), None)):
        name = "logging_steps"
    value = _given(call, name)
    return value if type(value) is int and value > 0 else None


def _given(call: Call, name: str) -> Any:
    """Return a constant argument of a call or its known default, or ``None`` if both are unknown."""
    if call.argument(name) is not None:
        return call.constant(name)
    of_transformers = call.last in _OWN and not call.open and not call.node.args[1:]
    return TRAINERS.defaults.get(name) if of_transformers else None


_TRAINERS = ("transformers.Trainer", "transformers.Seq2SeqTrainer")
_ARGUMENTS = ("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments")
_STRATEGIES = ("eval_strategy", "evaluation_strategy")
_ARGS, _EVAL_DATASET = 1, 4  # positions of ``args`` and ``eval_dataset`` in a call to a Trainer


def check_eval_dataset(script: Script, _run: Run) -> Iterator[Diagnostic]:
    """Find a Trainer that evaluates without an evaluation dataset.

    A call is checked only if the script shows all arguments of the call and creates its training arguments
    with a single call.
    """
    if sets_attribute(script, *_STRATEGIES, "eval_dataset"):
        return
    for call in script.calls:
        if not is_theirs(script, call, *_TRAINERS) or call.open:
            continue
        data = call.argument("eval_dataset", _EVAL_DATASET)
        makers = script.makers(call.argument("args", _ARGS))
        if (data is not None and not is_constant(data, None)) or len(makers) != 1:
            continue
        arguments = makers[0]
        if arguments.open or not is_theirs(script, arguments, *_ARGUMENTS):
            continue
        given = next(
            (argument for name in _STRATEGIES if (argument := arguments.argument(name)) is not None), None
        )
        if isinstance(given, ast.Constant) and given.value in ("steps", "epoch"):
            yield diagnostic("eval-dataset-missing", script.at(call), call=call.last, strategy=given.value)


def is_theirs(script: Script, call: Call, *names: str) -> bool:
    """Return whether the call constructs one of these classes and the script does not define the class."""
    return script.full(call.name) in names and not is_own(script, call.name)


def sets_attribute(script: Script, *names: str) -> bool:
    """Return whether the script sets, or might set, an attribute with one of these names.

    Examples of such code are ``args.eval_strategy = "no"`` and any call to ``setattr``.
    """
    return bool(script.names & {"setattr", "__dict__"}) or any(
        node.attr in names and not isinstance(node.ctx, ast.Load) for node in script.of(ast.Attribute)
    )


_CONFIGS = ("trl.GRPOConfig", "trl.RLOOConfig")
_GENERATIONS = "num_generations"
_DEVICE, _STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
_OTHERS = ("generation_batch_size", "steps_per_generation")


def check_generations(script: Script, run: Run) -> Iterator[Diagnostic]:
    """Find calls in which ``num_generations`` is 1 or does not divide the batch size.

    A call is checked only if all its sizes are numbers. The severity is "fails" only for releases of TRL that
    are known to calculate the batch size as described in the module's docstring.
    """
    if sets_attribute(script, _GENERATIONS, _DEVICE, _STEPS, *_OTHERS):
        return
    for call in script.calls:
        if not is_theirs(script, call, *_CONFIGS) or call.open:
            continue
        groups = _number(call, _GENERATIONS)
        if groups is None:
            continue
        severity: Severity = "fails" if run.fits("trl", ">=0.18") else "likely"
        if groups == 1:
            yield diagnostic("batch-not-in-groups-alone", script.at(call), severity=severity)
        elif (sizes := _sizes(call, run.world_size)) and (batch := sizes[0] * sizes[1] * sizes[2]) % groups:
            shown = " x ".join(map(str, sizes))
            yield diagnostic(
                "batch-not-in-groups",
                script.at(call),
                severity=severity,
                batch=batch,
                shown=shown,
                groups=groups,
            )


def _sizes(call: Call, world_size: int | None) -> tuple[int, int, int] | None:
    """Return the numbers of processes, samples per device, and accumulation steps, or ``None`` if unknown."""
    if world_size is None or call.argument("generation_batch_size") is not None:
        return None
    name = "steps_per_generation" if call.argument("steps_per_generation") is not None else _STEPS
    steps = _number(call, name) if call.argument(name) is not None else 1
    device = _number(call, _DEVICE)
    return (world_size, device, steps) if device and steps else None


def _number(call: Call, name: str) -> int | None:
    value = call.constant(name)
    return value if type(value) is int else None
