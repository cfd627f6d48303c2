"""What transformers refuses of its training arguments, alone or beside the DeepSpeed configuration.

transformers 5.23.0: ``training_args.py`` (``__post_init__``) takes one of fp16 and bf16;
``integrations/deepspeed.py`` (``trainer_config_process``) compares what the configuration says with the
arguments, and ``trainer_config_finalize`` raises as training begins.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from stallwatch_lint.diagnostic import Diagnostic, diagnostic
from stallwatch_lint.dsconfig import AUTO, DsConfig, Path
from stallwatch_lint.script import Call, Script, is_constant

#: what transformers itself defines, with the defaults below; others' classes may have other ones
_OWN = ("TrainingArguments", "Seq2SeqTrainingArguments")
#: each key of the configuration with its argument, and the argument's default (``training_args.py``)
COMPARED: Mapping[Path, tuple[str, Any]] = {
    ("train_micro_batch_size_per_gpu",): ("per_device_train_batch_size", 8),
    ("gradient_accumulation_steps",): ("gradient_accumulation_steps", 1),
    ("gradient_clipping",): ("max_grad_norm", 1.0),
    ("optimizer", "params", "lr"): ("learning_rate", 5e-5),
    ("optimizer", "params", "eps"): ("adam_epsilon", 1e-8),
    ("optimizer", "params", "weight_decay"): ("weight_decay", 0.0),
    ("scheduler", "params", "warmup_max_lr"): ("learning_rate", 5e-5),
    ("fp16", "enabled"): ("fp16", False),
    ("bf16", "enabled"): ("bf16", False),
}


def check_training_arguments(script: Script, config: DsConfig | None) -> Iterator[Diagnostic]:
    """fp16 beside bf16, and literals that differ from what the configuration says.

    A call that names another file is compared with none; one that does not name this one may yet get it
    (``accelerate launch``), or be given other arguments, so that its difference is only likely to matter.
    """
    if not script.imports & {"transformers", "trl"}:
        return
    for call in script.calls:
        own = call.last in _OWN
        if not own and not call.last.endswith(("TrainingArguments", "Config")):
            continue
        if is_constant(call.argument("fp16"), True) and is_constant(call.argument("bf16"), True):
            yield diagnostic("fp16-and-bf16-arguments", script.at(call), call=call.last)
        if (
            config is not None
            and not config.accelerate
            and (own or call.last.endswith("TrainingArguments") or _trains(call))
        ):
            yield from _compared(script, call, config, own)


def _trains(call: Call) -> bool:
    """Whether the configuration of a trainer (``SFTConfig``), and not of a model, is made here."""
    return call.argument("deepspeed") is not None or call.argument("per_device_train_batch_size") is not None


def _compared(script: Script, call: Call, config: DsConfig, own: bool) -> Iterator[Diagnostic]:
    named = call.argument("deepspeed")
    file = named.value if isinstance(named, ast.Constant) and isinstance(named.value, str) else None
    if file is not None and PurePath(file).name != PurePath(config.file).name:
        return
    for path, (argument, default) in COMPARED.items():
        value = config.get(*path)
        if value is None or value == AUTO or isinstance(value, str):
            continue
        given = call.argument(argument)
        if given is None and (not own or call.open or call.node.args[1:]):
            continue
        wanted = default if given is None else _literal(given)
        if wanted is None or value == wanted or _excused(call, argument):
            continue
        yield diagnostic(
            f"arguments-differ-from-config{'-default' if given is None else ''}",
            script.at(call),
            severity="likely" if file is None else "fails",
            key=".".join(path),
            value=str(value),
            argument=argument,
            wanted=str(wanted),
        )


def _excused(call: Call, argument: str) -> bool:
    """Whether another argument counts as well: the search for a batch size, evaluation in half precision."""
    other = {
        "per_device_train_batch_size": "auto_find_batch_size",
        "fp16": "fp16_full_eval",
        "bf16": "bf16_full_eval",
    }.get(argument)
    return other is not None and call.argument(other) is not None


def _literal(node: ast.expr) -> Any:
    """The number or flag that stands there; ``None`` for what is none."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, (bool, int, float)) else None
