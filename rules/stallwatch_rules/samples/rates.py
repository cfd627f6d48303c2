"""Throughput, memory, rewards and validation losses in running text, by the names that trainers give them."""

from __future__ import annotations

import re
from collections.abc import Callable

from stallwatch_rules.hints import may_hold
from stallwatch_rules.samples.fields import GIB, MIB
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.numbers import NUMBER, number

_GIVEN = r"\s{0,3}[:=]\s{0,4}(?:np\.float\d\d\()?(" + NUMBER + r")"

# Python looks fast for letters with which an expression begins: so what may not stand before them is asked
# behind the first one.
_TOKENS = lazy(
    r"(?:t(?<![\w/]t)(?:ps|gs|ok(?:en)?s?(?:[_ ]per[_ ]|/)s(?:ec(?:ond)?)?(?:(?:_per_|/)(?:gpu|device))?"
    r"|okens per gpu per second)|p(?<![\w/]p)erf/throughput)" + _GIVEN + r"([km]\b)?"
)
_TOKENS_COUNTED = lazy(r"(?<![\w.])(" + NUMBER + r") tok(?:ens)?/s(?![ec]*\s?[:=])")
_SAMPLES = lazy(
    r"(?:c(?<!avgc)(?<!runningc)urrsamplespersec"
    r"|s(?<!avgs)(?<!runnings)amples?(?:[_ ]per[_ ]|/)s(?:ec(?:ond)?)?)" + _GIVEN
)
_SAMPLES_COUNTED = lazy(r"(?<![\w.])(" + NUMBER + r") samples/s(?![ec]*\s?[:=])")
_REWARD = lazy(
    r"(?<![\w/])(?:(?:mean|avg|average|eval)?[_ ]?rewards?(?:[_/]mean|[_ ]score)?"
    r"|critic/(?:rewards|score)/mean)" + _GIVEN
)
_KL = lazy(r"(?<![\w/])(?:actor/ppo_|objective/|approx_)?kl" + _GIVEN)
_EVAL_LOSS = lazy(
    r"(?<![\w/])(?:eval|val|valid|validation|dev|test)[_/ ](?:lm[_ ])?loss(?:_epoch)?(?![\w/])"
    r"\s{0,3}[:=]?\s{0,4}(" + NUMBER + r")(?!\w)"
)
_EVALUATED = ("val", "dev", "test")  # one of them names the loss
_SKIPPED = lazy(r"number of skipped iterations" + _GIVEN)
# torchtitan, DETR and mmengine (MiB), verl (GB); what a bar or a line calls the memory without saying which
_MEMORY = lazy(
    r"mem(?:(?<![\w/]mem)|(?<=max_mem)(?<![\w/]max_mem)|(?<=peak_mem)(?<![\w/]peak_mem))(?:ory)?"
    r"(?:_active|_alloc|_reserved)?(?:\((gib|gb|mib|mb)\))?"
    + _GIVEN + r"\s?(gib|gb|mib|mb|g)?(?![\w])"
)  # fmt: skip
_VERL_MEMORY = lazy(r"perf/max_memory_(allocated|reserved)_gb" + _GIVEN)
_MEGATRON_MEMORY = lazy(r"memory \(mb\) \| allocated: (" + NUMBER + r") \| max allocated: (" + NUMBER + r")")
_THOUSANDS = {"k": 1e3, "m": 1e6}  # nanotron's "52.1K"
_UNITS = {"gib": GIB, "gb": GIB, "g": GIB, "mib": MIB, "mb": MIB, "": MIB}


def _tokens(lower: str) -> re.Match[str] | None:
    return _first(_TOKENS.search(lower), _TOKENS_COUNTED.search(lower) if " tok" in lower else None)


def _samples(lower: str) -> re.Match[str] | None:
    return _first(_SAMPLES.search(lower), _SAMPLES_COUNTED.search(lower) if " samples/s" in lower else None)


def _first(one: re.Match[str] | None, two: re.Match[str] | None) -> re.Match[str] | None:
    if one is None or two is None:
        return one or two
    return one if one.start() <= two.start() else two


_SIMPLE: tuple[tuple[str, str, Callable[[str], re.Match[str] | None]], ...] = (
    # a word that is in the line then, our field, what finds the number
    ("tok", "tokens_per_second", _tokens),
    ("tps", "tokens_per_second", _tokens),
    ("tgs", "tokens_per_second", _tokens),
    ("throughput", "tokens_per_second", _tokens),
    ("samples", "samples_per_second", _samples),
    ("reward", "reward", _REWARD.search),
    ("kl", "kl", _KL.search),
    ("skipped it", "skipped_iterations", _SKIPPED.search),
)


def rates(lower: str, values: dict[str, float]) -> None:
    """Add to the values what the text (in lower case) tells beside loss and learning rate."""
    for word, field, find in _SIMPLE:
        if word in lower and field not in values:
            found = find(lower)
            if found:
                counted = field == "tokens_per_second" and found.re.pattern == _TOKENS.pattern
                more = found[2] if counted else None
                values[field] = number(found[1]) * (_THOUSANDS[more] if more else 1)
    if "loss" in lower and may_hold(lower, _EVALUATED) and "eval_loss" not in values:
        found = _EVAL_LOSS.search(lower)
        if found:
            values["eval_loss"] = number(found[1])
    if "mem" in lower and "memory_peak_bytes" not in values:
        _memory(lower, values)


def _memory(lower: str, values: dict[str, float]) -> None:
    for kind, amount in _VERL_MEMORY.findall(lower):
        field = "memory_allocated_bytes" if kind == "allocated" else "memory_peak_bytes"
        values[field] = number(amount) * GIB
    if "memory_peak_bytes" in values or "memory_allocated_bytes" in values:
        return
    found = _MEGATRON_MEMORY.search(lower)
    if found:
        values["memory_allocated_bytes"] = number(found[1]) * MIB
        values["memory_peak_bytes"] = number(found[2]) * MIB
        return
    found = _MEMORY.search(lower)
    if found:
        torchtune = "gib" if found[0].startswith(("peak_memory_active", "memory_active")) else ""
        values["memory_peak_bytes"] = number(found[2]) * _UNITS[found[1] or found[3] or torchtune]
