"""``name: number`` pairs in running text: losses, norms, rates, times and memory by their many names."""

from __future__ import annotations

import re
from functools import lru_cache

from stallwatch_rules.hints import may_hold
from stallwatch_rules.numbers import NUMBER, number

GIB = 1024.0**3

_WORDS = ("loss", "norm", "lr", "learning", "skipped")  # each name holds one of them
_KEYED = re.compile(
    r"(?<![\w/.])"
    r"((?:[\w/]{0,20}?loss|[\w/]{0,12}grad[ _]?norm|gnorm|norm|learning[ _]rate|lr|skipped|loss[ _]scale)\b)"
    r"\s{0,4}(?:[:=：]\s{0,4})?\[?(" + NUMBER + r")(?![\w])",
    re.IGNORECASE,
)
_WORD_BEFORE = re.compile(r"(?<![\w/])[A-Za-z]{2,12} \Z")  # "val" of "val loss"
_TIMED = re.compile(
    r"(?:elapsed time per iteration|iter time|train_step_timing|time_per_step|step[_ ]time|timing_s/step)"
    r"(?: in s| ?\((ms|s)\))?\s{0,3}[:=]\s{0,3}(" + NUMBER + r")\s?(ms|s)?",
    re.IGNORECASE,
)
_SINCE_START = re.compile(r"\btrain_time[:=]\s?(" + NUMBER + r")(ms|s)\b")
# Losses that are not the training's: "val loss", "aux_loss", …
_OTHER_LOSS = re.compile(
    r"\b(?:val|valid|validation|eval|test|dev|critic|aux|auxiliary|kl|value|vf|router|z|balance|balancing"
    r"|entropy|unsupervised|ptx|mtp|ref|best|min|max|prev|previous|last)\b",
    re.IGNORECASE,
)


def keyed(text: str) -> dict[str, float]:
    """The metrics that the text names, by our names; the first of each counts."""
    values: dict[str, float] = {}
    lowered = text.lower()
    if may_hold(lowered, _WORDS):
        for found in _KEYED.finditer(text):
            metric = _metric(found[1])
            if metric == "loss" and _is_other(text, found):
                continue
            values.setdefault(metric, number(found[2]))
    timed = _TIMED.search(text) if "tim" in lowered else None
    if timed:
        seconds = number(timed[2])
        values["step_seconds"] = seconds / 1000 if "ms" in (timed[1], timed[3]) else seconds
    since_start = _SINCE_START.search(text) if "train_time" in text else None
    if since_start:
        values["elapsed_seconds"] = number(since_start[1]) / (1000 if since_start[2] == "ms" else 1)
    if "Mem" in text:
        values.update(memory(text))
    return values


@lru_cache(maxsize=1024)  # a log has few names and prints them again and again
def _metric(name: str) -> str:
    key = name.lower().replace(" ", "_")
    if key.endswith("loss"):
        return "loss"
    if key.endswith("norm"):
        return "grad_norm"
    if key in ("lr", "learning_rate"):
        return "learning_rate"
    return "skipped_steps" if key == "skipped" else "loss_scale"


def _is_other(text: str, found: re.Match[str]) -> bool:
    """Whether the loss is another than the training's, by its name or by the word before it."""
    start = found.start()
    before = None
    if start and text[start - 1] == " ":
        before = _WORD_BEFORE.search(text, max(0, start - 13), start)
    return _names_other(before[0] if before else "", found[1])


@lru_cache(maxsize=1024)
def _names_other(word: str, name: str) -> bool:
    return _OTHER_LOSS.search(f"{word} {name}".replace("_", " ").replace("/", " ")) is not None


_ALLOCATED = re.compile(r"\bMemAllocated=(" + NUMBER + r")GB(?:, MaxMemAllocated=(" + NUMBER + r")GB)?")
_MEMORY_USAGE = re.compile(r"\bMA (" + NUMBER + r") GB\s+Max_MA (" + NUMBER + r") GB\s+CA ")


def memory(text: str) -> dict[str, float]:
    """Allocated and peak device memory as DeepSpeed prints them."""
    found = _ALLOCATED.search(text) if "MemAllocated" in text else None
    if found is None and "Max_MA" in text:
        found = _MEMORY_USAGE.search(text)
    if found is None:
        return {}
    values = {"memory_allocated_bytes": number(found[1]) * GIB}
    if found[2]:
        values["memory_peak_bytes"] = number(found[2]) * GIB
    return values
