"""Read pairs that consist of a name and a number: losses, norms, rates, rewards, times, and memory."""

from __future__ import annotations

import re
from functools import lru_cache

from stallwatch_rules.hints import may_hold
from stallwatch_rules.samples.fields import GIB, MIB
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.numbers import NUMBER, PAD, lowered, number

_SIGN = PAD + "[:=]" + PAD + r"(?:np\.float\d\d\()?"
_GIVEN = _SIGN + "(" + NUMBER + ")"

# Python searches faster for a regular expression that begins with a letter. Therefore, the test of the
# preceding text comes after the first letter.
_TOKENS = lazy(
    r"(?:t(?<![\w/]t)(?:ps|gs|ok(?:en)?s?(?:[_ ]per[_ ]|/)s(?:ec(?:ond)?)?(?:(?:_per_|/)(?:gpu|device))?"
    r"|okens per gpu per second)|p(?<![\w/]p)erf/throughput)" + _SIGN + "(" + NUMBER + r"(?:[km]\b)?)"
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
_ADVANTAGE = r"(?<![\w/])critic/advantages/"  # statistics that verl prints about the responses in a step
_ADVANTAGE_MIN, _ADVANTAGE_MAX = lazy(_ADVANTAGE + "min" + _GIVEN), lazy(_ADVANTAGE + "max" + _GIVEN)
_ENTROPY = lazy(r"(?<![\w/])(?:actor/|policy/|objective/)?entropy(?:_avg)?" + _GIVEN)
_EVAL_ACCURACY = lazy(r"(?<![\w/])(?:eval|val|validation)[_/ ]acc(?:uracy)?" + _GIVEN + r"(?![\w%])")
_KL = lazy(r"(?<![\w/])(?:actor/ppo_|objective/|approx_)?kl" + _GIVEN)
_EVAL_LOSS = lazy(
    r"(?<![\w/])(?:eval|val|valid|validation|dev|test)[_/ ](?:lm[_ ])?loss(?:_epoch)?(?![\w/])"
    r"(?:" + PAD + "[:=])?" + PAD + "(" + NUMBER + r")(?!\w)"
)
_SKIPPED = lazy(r"number of skipped iterations" + _GIVEN)
# Memory as printed by torchtitan, DETR, and mmengine (MiB) and by verl (GB), and memory without a unit in a
# bar or in a line.
_MEMORY = lazy(
    r"mem(?:(?<![\w/]mem)|(?<=max_mem)(?<![\w/]max_mem)|(?<=peak_mem)(?<![\w/]peak_mem))(?:ory)?"
    r"(?:_active|_alloc|_reserved)?(?:\((gib|gb|mib|mb)\))?"
    + _GIVEN + r"\s?(gib|gb|mib|mb|g)?(?![\w])"
)  # fmt: skip
_VERL_MEMORY = lazy(r"perf/max_memory_(allocated|reserved)_gb" + _GIVEN)
_MEGATRON_MEMORY = lazy(r"memory \(mb\) \| allocated: (" + NUMBER + r") \| max allocated: (" + NUMBER + r")")
_THOUSANDS = {"k": 1e3, "m": 1e6}  # suffixes of numbers; for example, nanotron prints "52.1K"
_UNITS = {"gib": GIB, "gb": GIB, "g": GIB, "mib": MIB, "mb": MIB, "": MIB}


_QUANTITIES: tuple[tuple[str, tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]], ...] = (
    # Each entry consists of a field and of pairs (words, pattern). A pattern is tried only if the line
    # contains one of its words. The match that comes first in the line is used.
    ("tokens_per_second", ((("tok", "tps", "tgs", "throughput"), _TOKENS), ((" tok",), _TOKENS_COUNTED))),
    ("samples_per_second", ((("samples",), _SAMPLES), ((" samples/s",), _SAMPLES_COUNTED))),
    ("reward", ((("reward", "/score/mean"), _REWARD),)),
    ("advantage_min", ((("advantages/min",), _ADVANTAGE_MIN),)),
    ("advantage_max", ((("advantages/max",), _ADVANTAGE_MAX),)),
    ("entropy", ((("entropy",), _ENTROPY),)),
    ("eval_accuracy", ((("val_acc", "val/acc", "val acc", "validation"), _EVAL_ACCURACY),)),
    ("kl", ((("kl",), _KL),)),
    ("skipped_iterations", ((("skipped it",), _SKIPPED),)),
    ("eval_loss", ((("val", "dev", "test"), _EVAL_LOSS),)),
)


#: All words of each quantity. Most lines contain none of these words.
_WORDS_OF = tuple(
    (tuple(word for words, _ in finders for word in words), field, finders) for field, finders in _QUANTITIES
)


def rates(lower: str, values: dict[str, float]) -> None:
    """Add the quantities in lowercase text to `values`, except for the loss and the learning rate."""
    for every, field, finders in _WORDS_OF:
        for word in every:
            if word in lower:
                break
        else:
            continue
        if field not in values:
            found = [
                match
                for words, pattern in finders
                if may_hold(lower, words) and (match := pattern.search(lower))
            ]
            if found:
                amount = min(found, key=re.Match.start)[1]
                values[field] = number(amount.rstrip("km")) * _THOUSANDS.get(amount[-1], 1)
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


_LOSSES = ("loss", "loss_step", "loss train")
_WORDS = ("loss", "norm", "lr", "learning", "skipped")  # each name of a metric contains one of these words

# The following expressions search lowercase text. They begin with letters, because such searches are fast.
# The text before these letters is examined only after a match.
_KEYED = lazy(
    r"(loss(?:_step| train)?|norm|lr|learning[ _]rate|skipped|loss[ _]scale)\b"
    r"(?:(?<=loss)['\"](?=:))?(?:" + PAD + "[:=：])?" + PAD
    + r"\[?(?:np\.float\d\d\(|tensor\(\[{0,2})?(" + NUMBER + r")(?![\w])"
)  # fmt: skip
_NAME_BEFORE = lazy(r"(?<![\w/.])[\w/]{0,20}\Z")  # for example, "train/policy_" in "train/policy_loss"
_NORM_BEFORE = lazy(r"g|global_|[\w/]{0,12}grad_?")
_OTHER_NORM = lazy(r"(?:key|head|layer|weight|param(?:eter)?|update|activation|embedding)s? \Z")
_WORD_BEFORE = lazy(r"(?<![\w/])[a-z]{2,12} \Z")  # for example, "val" in "val loss"
_TIMED = lazy(
    r"(?:elapsed[ _]time[ _]per[ _]iteration|iter time|train_step_timing|time_per_step|per_step_time"
    # The last alternative is for MaxText, which prints the seconds directly after the step.
    r"|step[_ ]time|timing_s/step|^, seconds)"
    r"(?: in s|[ _]?\(?(ms|s)\)?)?" + PAD + "[:=]" + PAD + "(" + NUMBER + r")(k\b)?\s?(ms|s)?"
)
_SINCE_START = lazy(r"\btrain_time[:=]\s?(" + NUMBER + r")(ms|s)\b")
# Losses other than the training loss, such as "val loss" and "aux_loss".
_OTHER_LOSS = lazy(
    r"\b(?:val|valid|validation|eval|test|dev|critic|aux|auxiliary|kl|value|vf|router|z|balance|balancing"
    r"|entropy|unsupervised|ptx|mtp|ref|init|initial|best|min|max|prev|previous|last)\b",
    re.IGNORECASE,
)


_METRICS = {
    "loss": "loss",
    "loss_step": "loss",  # name in Lightning
    "loss train": "loss",  # name in litgpt
    "norm": "grad_norm",
    "lr": "learning_rate",
    "learning rate": "learning_rate",
    "learning_rate": "learning_rate",
    "skipped": "skipped_steps",
    "loss scale": "loss_scale",
    "loss_scale": "loss_scale",
}


def metrics_by_field(text: str) -> dict[str, float]:
    """Return a line's metrics by field. If a field occurs several times, the first value is used."""
    values: dict[str, float] = {}
    if not text:
        return values
    lower = lowered(text)
    if may_hold(lower, _WORDS):
        for found in _KEYED.finditer(lower):
            before = _name_before(lower, found)
            if before is None or (found[1] in _LOSSES and _is_other(lower, found.start(), before)):
                continue
            values.setdefault(_METRICS[found[1]], number(found[2]))
    timed = _TIMED.search(lower) if "tim" in lower or lower.startswith(", sec") else None
    if timed:
        seconds = number(timed[2]) * (1000 if timed[3] else 1)  # nanotron prints values such as "1.2K"
        values["step_seconds"] = seconds / 1000 if "ms" in (timed[1], timed[4]) else seconds
    since_start = _SINCE_START.search(text) if "train_time" in text else None
    if since_start:
        values["elapsed_seconds"] = number(since_start[1]) / (1000 if since_start[2] == "ms" else 1)
    if "Mem" in text:
        values.update(memory(text))
    return values


def _name_before(lower: str, found: re.Match[str]) -> str | None:
    """Return the part of a metric's name that precedes the matched word.

    Return ``None`` if the whole name is the name of a different metric.
    """
    start = found.start()
    last = lower[start - 1] if start else " "
    if not (last.isalnum() or last in "_/."):
        if found[1] == "norm" and _OTHER_NORM.search(lower, max(0, start - 12), start):
            return None
        return ""
    before = _NAME_BEFORE.search(lower, max(0, start - 20), start)
    if before is None or not before[0]:
        return None
    if found[1] in _LOSSES or (found[1] == "norm" and _NORM_BEFORE.fullmatch(before[0])):
        return before[0]
    return None


def _is_other(lower: str, start: int, before: str) -> bool:
    """Return whether a loss is not the training loss. The name and the word before it are examined."""
    start -= len(before)
    word = None
    if start and lower[start - 1] == " ":
        word = _WORD_BEFORE.search(lower, max(0, start - 13), start)
    return _names_other(word[0] if word else "", before + "loss")


@lru_cache(maxsize=1024)  # the number of different names in a log is small
def _names_other(word: str, name: str) -> bool:
    return _OTHER_LOSS.search(f"{word} {name}".replace("_", " ").replace("/", " ")) is not None


# The preceding text is tested after the letters, because expressions that begin with letters are faster.
_ALLOCATED = lazy(
    r"MemAllocated=(?<!\wMemAllocated=)(" + NUMBER + r")GB(?:, MaxMemAllocated=(" + NUMBER + r")GB)?"
)
_MEMORY_USAGE = lazy(r"MA (?<!\wMA )(" + NUMBER + r") GB\s+Max_MA (" + NUMBER + r") GB\s+CA ")


def memory(text: str) -> dict[str, float]:
    """If a line from DeepSpeed shows the allocated and peak device memory, return these values."""
    found = _ALLOCATED.search(text) if "MemAllocated" in text else None
    if found is None and "Max_MA" in text:
        found = _MEMORY_USAGE.search(text)
    if found is None:
        return {}
    values = {"memory_allocated_bytes": number(found[1]) * GIB}
    if found[2]:
        values["memory_peak_bytes"] = number(found[2]) * GIB
    return values
