"""Throughput, memory, rewards and validation losses in running text, by the names that trainers give them."""

from __future__ import annotations

import re

from stallwatch_rules.samples.fields import GIB, MIB
from stallwatch_rules.text.numbers import NUMBER, number

_GIVEN = r"\s{0,3}[:=]\s{0,4}(?:np\.float\d\d\()?(" + NUMBER + r")"

_TOKENS = re.compile(
    r"(?<![\w/])(?:tps|tgs|perf/throughput|tok(?:en)?s?(?:[_ ]per[_ ]|/)s(?:ec(?:ond)?)?(?:(?:_per_|/)gpu)?"
    r"|tokens per gpu per second)" + _GIVEN + r"|(?<![\w.])(" + NUMBER + r") tok(?:ens)?/s(?![ec]*\s?[:=])"
)
_SAMPLES = re.compile(
    r"(?<!avg)(?<!running)(?:currsamplespersec|samples?(?:[_ ]per[_ ]|/)s(?:ec(?:ond)?)?)" + _GIVEN
    + r"|(?<![\w.])(" + NUMBER + r") samples/s(?![ec]*\s?[:=])"
)  # fmt: skip
_REWARD = re.compile(
    r"(?<![\w/])(?:(?:mean|avg|average|eval)?[_ ]?rewards?(?:[_/]mean|[_ ]score)?"
    r"|critic/(?:rewards|score)/mean)" + _GIVEN
)
_KL = re.compile(r"(?<![\w/])(?:actor/ppo_|objective/|approx_)?kl" + _GIVEN)
_EVAL_LOSS = re.compile(
    r"(?<![\w/])(?:eval|val|valid|validation|dev|test)[_/ ](?:lm[_ ])?loss(?:_epoch)?(?![\w/])"
    r"\s{0,3}[:=]?\s{0,4}(" + NUMBER + r")(?!\w)"
)
_SKIPPED = re.compile(r"number of skipped iterations" + _GIVEN)
# torchtitan, DETR and mmengine (MiB), verl (GB); what a bar or a line calls the memory without saying which
_MEMORY = re.compile(
    r"(?<![\w/])(?:max |peak |gpu |max_|peak_)?mem(?:ory)?(?:_active|_alloc|_reserved)?"
    r"(?:\((gib|gb|mib|mb)\))?"
    + _GIVEN + r"\s?(gib|gb|mib|mb|g)?(?![\w])"
)  # fmt: skip
_VERL_MEMORY = re.compile(r"perf/max_memory_(allocated|reserved)_gb" + _GIVEN)
_MEGATRON_MEMORY = re.compile(
    r"memory \(mb\) \| allocated: (" + NUMBER + r") \| max allocated: (" + NUMBER + r")"
)
_UNITS = {"gib": GIB, "gb": GIB, "g": GIB, "mib": MIB, "mb": MIB, "": MIB}


def _first(found: re.Match[str]) -> float:
    return number(next(digits for digits in found.groups() if digits))


_SIMPLE: tuple[tuple[str, str, re.Pattern[str]], ...] = (
    # a word that is in the line then, our field, the pattern
    ("tok", "tokens_per_second", _TOKENS),
    ("tps", "tokens_per_second", _TOKENS),
    ("tgs", "tokens_per_second", _TOKENS),
    ("throughput", "tokens_per_second", _TOKENS),
    ("samples", "samples_per_second", _SAMPLES),
    ("reward", "reward", _REWARD),
    ("kl", "kl", _KL),
    ("skipped it", "skipped_iterations", _SKIPPED),
)


def rates(lower: str, values: dict[str, float]) -> None:
    """Add to the values what the text (in lower case) tells beside loss and learning rate."""
    for word, field, pattern in _SIMPLE:
        if word in lower and field not in values:
            found = pattern.search(lower)
            if found:
                values[field] = _first(found)
    if "loss" in lower and "eval_loss" not in values:
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
        values["memory_peak_bytes"] = number(found[2]) * _UNITS[found[1] or found[3] or ""]
