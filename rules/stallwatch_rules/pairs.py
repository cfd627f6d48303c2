"""``name: number`` pairs in running text: losses, norms, rates, times and memory by their many names."""

from __future__ import annotations

import re

from stallwatch_rules.numbers import NUMBER, number

GIB = 1024.0**3

_KEYED = re.compile(
    r"(?:(?<![\w/])([A-Za-z]{2,12}) )?(?<![\w/.])"
    r"((?:[\w/]{0,20}?loss|[\w/]{0,12}grad[ _]?norm|gnorm|norm|learning[ _]rate|lr|skipped|loss[ _]scale)\b)"
    r"\s{0,4}(?:[:=：]\s{0,4})?\[?(" + NUMBER + r")(?![\w])",
    re.IGNORECASE,
)
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
    for word, name, digits in _KEYED.findall(text):
        key = name.lower().replace(" ", "_")
        if key.endswith("loss"):
            metric = "loss"
            if _OTHER_LOSS.search(f"{word} {key}".replace("_", " ").replace("/", " ")):
                continue
        elif key.endswith("norm"):
            metric = "grad_norm"
        elif key in ("lr", "learning_rate"):
            metric = "learning_rate"
        elif key == "skipped":
            metric = "skipped_steps"
        else:
            metric = "loss_scale"
        values.setdefault(metric, number(digits))
    timed = _TIMED.search(text)
    if timed:
        seconds = number(timed[2])
        values["step_seconds"] = seconds / 1000 if "ms" in (timed[1], timed[3]) else seconds
    since_start = _SINCE_START.search(text)
    if since_start:
        values["elapsed_seconds"] = number(since_start[1]) / (1000 if since_start[2] == "ms" else 1)
    if "Mem" in text:
        values.update(memory(text))
    return values


_ALLOCATED = re.compile(r"\bMemAllocated=(" + NUMBER + r")GB(?:, MaxMemAllocated=(" + NUMBER + r")GB)?")
_MEMORY_USAGE = re.compile(r"\bMA (" + NUMBER + r") GB\s+Max_MA (" + NUMBER + r") GB\s+CA ")


def memory(text: str) -> dict[str, float]:
    """Allocated and peak device memory as DeepSpeed prints them."""
    found = _ALLOCATED.search(text) or _MEMORY_USAGE.search(text)
    if found is None:
        return {}
    values = {"memory_allocated_bytes": number(found[1]) * GIB}
    if found[2]:
        values["memory_peak_bytes"] = number(found[2]) * GIB
    return values
