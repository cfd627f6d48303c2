"""Check the names and the constructor arguments of the configured optimizer and scheduler.

If the script does not pass an optimizer, DeepSpeed constructs the optimizer and the scheduler with ``params``
as keyword arguments (0.9.0 to 0.19.8, ``runtime/engine.py``, ``_configure_basic_optimizer`` and
``_scheduler_from_config``). Because the script might pass an optimizer, the severity is at most "likely".
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from stallwatch_lint.config_keys import did_you_mean
from stallwatch_lint.diagnostic import Diagnostic, diagnostic
from stallwatch_lint.dsconfig import AUTO, DsConfig
from stallwatch_lint.facts import facts
from stallwatch_lint.run import Run
from stallwatch_rules.messages import Message, message


class _Optimizers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    own: list[str]
    one_bit: dict[str, str]
    tried: set[str]
    of_torch: list[str]
    schedulers: dict[str, set[str]]
    schedulers_of_torch: list[str]
    adam: set[str]
    numbers: set[str]


KNOWN = facts("optimizers", _Optimizers)


def check_optimizer(config: DsConfig, _run: Run) -> Iterator[Diagnostic]:
    """Check the optimizer's name, its ``max_grad_norm``, and the scheduler's name."""
    name, place = config.get("optimizer", "type"), config.at("optimizer", "type")
    if config.has("optimizer", "params", "max_grad_norm"):
        yield diagnostic("optimizer-max-grad-norm", config.at("optimizer", "params", "max_grad_norm"))
    if isinstance(name, str):
        is_deepspeeds = name.lower() in map(str.lower, KNOWN.own)
        if not is_deepspeeds and name not in KNOWN.of_torch:
            fix = _nearest(name, (*KNOWN.of_torch, *KNOWN.own), "optimizer-unknown-near-fix")
            yield diagnostic("optimizer-unknown", place, fix=fix, name=name)
        elif config.stage and name.lower() in KNOWN.one_bit:
            own_name = KNOWN.one_bit[name.lower()]
            yield diagnostic("one-bit-with-zero", place, name=name, stage=config.stage, own_name=own_name)
        elif (
            config.stage
            and name.lower() not in KNOWN.tried
            and not config.on("zero_allow_untested_optimizer")
        ):
            yield diagnostic("optimizer-untested", place, name=name)
    scheduler = config.get("scheduler", "type")
    known = (*KNOWN.schedulers, *KNOWN.schedulers_of_torch)
    if isinstance(scheduler, str) and scheduler not in known:
        yield diagnostic(
            "scheduler-unknown",
            config.at("scheduler", "type"),
            fix=_nearest(scheduler, known, "scheduler-unknown-near-fix"),
            name=scheduler,
            own=", ".join(KNOWN.schedulers),
        )


def check_parameters(config: DsConfig, _run: Run) -> Iterator[Diagnostic]:
    """Report parameters that Adam and the DeepSpeed schedulers do not accept, and quoted numbers."""
    optimizer, scheduler = config.get("optimizer", "type"), config.get("scheduler", "type")
    adam = isinstance(optimizer, str) and optimizer.lower() in ("adam", "adamw")
    for part, name, known in (
        ("optimizer", optimizer, KNOWN.adam if adam else None),
        ("scheduler", scheduler, KNOWN.schedulers.get(scheduler) if isinstance(scheduler, str) else None),
    ):
        for key, value in config.section(part, "params").items():
            if not isinstance(key, str):
                continue
            place = config.at(part, "params", key)
            if known is not None and key not in known:
                near = did_you_mean(key, known) or message("lint.take-it-out")
                yield diagnostic("parameter-unknown", place, fix=near, name=str(name), key=key)
            elif key in KNOWN.numbers and (text := _text(value)) is not None:
                yield diagnostic("parameter-in-quotes", place, part=part, key=key, text=text)


def _nearest(name: str, known: Iterable[str], fix: str) -> Message | None:
    """Ignoring case, return a fix that suggests the most similar name, or ``None`` if none is similar."""
    written = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), written, n=1, cutoff=0.8)
    return message(f"lint.{fix}", near=written[found[0]]) if found else None


def _text(value: Any) -> str | None:
    """Return the value if it is a string, or the first string in a list.

    The string ``auto`` does not count. Return ``None`` if there is no other string.
    """
    several = value if isinstance(value, list) else [value]
    return next((element for element in several if isinstance(element, str) and element != AUTO), None)
