"""GRPO's batch, which has to be a whole number of groups of generations.

trl 1.16.0, ``trainer/grpo_config.py`` and ``rloo_config.py`` (``__post_init__``): the batch is
``generation_batch_size``, else ``per_device_train_batch_size * world_size * steps_per_generation``; these
steps are ``gradient_accumulation_steps`` by default. ``num_generations`` must divide it and be 2 at least.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from stallwatch_lint.diagnostic import Diagnostic, Severity, diagnostic
from stallwatch_lint.eval_dataset import is_theirs, sets_attribute
from stallwatch_lint.script import Call, Script
from stallwatch_lint.versions import fits

_CONFIGS = ("trl.GRPOConfig", "trl.RLOOConfig")
_GENERATIONS = "num_generations"
_DEVICE, _STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
_OTHERS = ("generation_batch_size", "steps_per_generation")


def check_generations(
    script: Script, versions: Mapping[str, str], world_size: int | None
) -> Iterator[Diagnostic]:
    """Only where all the sizes are numbers in the call; FAILS with a release that is known to count so."""
    if sets_attribute(script, _GENERATIONS, _DEVICE, _STEPS, *_OTHERS):
        return
    for call in script.calls:
        if not is_theirs(script, call, *_CONFIGS) or call.open:
            continue
        groups = _number(call, _GENERATIONS)
        if groups is None:
            continue
        severity: Severity = "fails" if fits(versions, "trl", ">=0.18") else "likely"
        if groups == 1:
            yield diagnostic("batch-not-in-groups-alone", script.at(call), severity=severity)
        elif (sizes := _sizes(call, world_size)) and (batch := sizes[0] * sizes[1] * sizes[2]) % groups:
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
    """Processes, batch per device and accumulation, where all are known."""
    if world_size is None or call.argument("generation_batch_size") is not None:
        return None
    name = "steps_per_generation" if call.argument("steps_per_generation") is not None else _STEPS
    steps = _number(call, name) if call.argument(name) is not None else 1
    device = _number(call, _DEVICE)
    return (world_size, device, steps) if device and steps else None


def _number(call: Call, name: str) -> int | None:
    node = call.argument(name)
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None
