"""The numbers that trainers print: one line in, at most one sample out.

Only what is a metrics line counts: the formats are anchored at the start of the message, so that source code,
configuration dumps and prose that mention a loss or a step are left alone.
"""

from __future__ import annotations

import re
from functools import lru_cache

from stallwatch_rules.bars import read_bar
from stallwatch_rules.hints import may_hold
from stallwatch_rules.numbers import NUMBER, duration, lowered, number
from stallwatch_rules.pairs import GIB, keyed, memory
from stallwatch_rules.records import Line, Sample


def extract(line: Line) -> Sample | None:
    """The sample that a line holds, if it is a metrics line."""
    text = line.text
    if "[" in text and ("/s" in text or "s/" in text) and "<" in text:
        found = _from_bar(text)
    elif "{" in text and "}" in text:
        found = _from_dict(text)
    elif text.startswith("s:"):
        found = _from_short(text)
    else:
        found = None
    if found is None:
        if "oss" in text or "OVERFLOW" in text or "overflow" in text:
            found = _from_loss_scaler(text) or _from_text(text)
        elif "tep" in text or "iter" in text or "Iter" in text:
            found = _from_text(text)
        elif "MA " in text:
            found = _from_memory(text)
    if found is None:
        return None
    step, total, values, series = found
    return Sample(line.rank, line.time, step, total, values, series.startswith("bar"), series)


_Found = tuple[int | None, int | None, dict[str, float], str]  # step, total, values, series

# ---- progress bars


def _from_bar(text: str) -> _Found | None:
    bar = read_bar(text)
    if bar is None or not bar.training:
        return None
    values = keyed(bar.postfix) if "=" in bar.postfix else {}
    if bar.seconds is not None:
        values.setdefault("step_seconds", bar.seconds)
    if bar.elapsed is not None:
        values["elapsed_seconds"] = bar.elapsed
    if bar.epoch is not None:  # the bar starts again with each epoch: its total is not the run's
        values["epoch"] = bar.epoch
        return bar.done, None, values, "bar epoch"
    return bar.done, bar.total, values, f"bar {bar.total}"


# ---- dictionaries: transformers, TRL, ms-swift, JSON lines

_PAIR = re.compile(
    r"""['"]([\w /().:-]{1,60})['"]\s?:\s?"""
    r"""(?:['"]?(""" + NUMBER + r""")['"]?\s?(?=[,}\]])|"([^"]{0,40})"|'([^']{0,40})')"""
)
_DICT_KEYS = {
    "loss": "loss",
    "train_loss": "loss",
    "train/loss": "loss",
    "lm loss": "loss",
    "grad_norm": "grad_norm",
    "train/grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "lr": "learning_rate",
    "train/learning_rate": "learning_rate",
    "loss_scale": "loss_scale",
    "epoch": "epoch",
    "eval_loss": "eval_loss",
    "reward": "reward",
    "step_time": "step_seconds",
    "train_runtime": "train_runtime",
}
_STEP_KEYS = (
    "current_steps",
    "global_step/max_steps",
    "global_step",
    "train/global_step",
    "step",
    "steps",
    "iter",
)
_TOTAL_KEYS = ("total_steps", "max_steps", "train/total_steps")
_COUNTS = frozenset((*_STEP_KEYS, *_TOTAL_KEYS))
_TELLING = frozenset(("loss", "eval_loss", "train_runtime"))
_CONFIGURATION = ("batch_size", "zero_optimization", "per_device", "hidden_size", "num_train_epochs")


def _from_dict(text: str) -> _Found | None:
    start = text.find("{")
    if may_hold(text, _CONFIGURATION) or not _leads(text[:start]):
        return None
    numbers: dict[str, float] = {}
    words: dict[str, str] = {}
    for key, digits, word, other in _PAIR.findall(text, start):
        if digits:
            numbers.setdefault(key, number(digits))
        else:
            words.setdefault(key, word or other)
    values: dict[str, float] = {}
    for key in [key for key in _DICT_KEYS if key in numbers]:
        values.setdefault(_DICT_KEYS[key], numbers[key])
    if "train_runtime" in values:  # the summary: its loss is the mean over the run
        values.pop("loss", None)
    step, total = _step_of(numbers, words)
    if _TELLING.isdisjoint(values) and not (step is not None and len(numbers) > 1 and values):
        return None
    elapsed = duration(words["elapsed_time"]) if "elapsed_time" in words else None
    if elapsed is not None:
        values["elapsed_seconds"] = elapsed
    if "memory(GiB)" in numbers:
        values["memory_peak_bytes"] = numbers["memory(GiB)"] * GIB
    return step, total, values, "dict" if "loss" in values or step is not None else ""


_COUNT = re.compile(r"\d{1,15}")


def _step_of(numbers: dict[str, float], words: dict[str, str]) -> tuple[int | None, int | None]:
    if _COUNTS.isdisjoint(numbers) and _COUNTS.isdisjoint(words):
        return None, None
    step = total = None
    for key in _STEP_KEYS:
        if 0 <= numbers.get(key, -1) < 1e15 and numbers[key].is_integer():
            step = int(numbers[key])
            break
        done, slash, of = words.get(key, "").partition("/")
        if slash and _COUNT.fullmatch(done) and _COUNT.fullmatch(of):
            return int(done), int(of)
    for key in _TOTAL_KEYS:
        if 0 < numbers.get(key, 0) < 1e15 and numbers[key].is_integer():
            total = int(numbers[key])
            break
    return step, total


# ---- loss scaling

_ATTEMPTED = re.compile(r"Attempted loss scale: (" + NUMBER + r")(?:, reducing to (" + NUMBER + r"))?")
_RESCALED = re.compile(r"(?:Reducing|Increasing) dynamic loss scale from \S+ to (" + NUMBER + r")")


def _from_loss_scaler(text: str) -> _Found | None:
    """DeepSpeed's dynamic loss scalers. A skipped step is counted once: ZeRO says ``OVERFLOW!``; the
    optimizers without ZeRO say ``Grad overflow on iteration …`` and repeat it in other words."""
    values: dict[str, float] = {}
    if "OVERFLOW!" in text or "Grad overflow on iteration" in text:
        if "No Grad" in text:
            return None
        values["overflow"] = 1.0
    if "loss scale" in text:
        found = _ATTEMPTED.search(text)
        if found:
            values["loss_scale"] = number(found[2] or found[1])
        else:
            found = _RESCALED.search(text)
            if found:
                values["loss_scale"] = number(found[1])
    return (None, None, values, "") if values else None


# ---- plain text: "step 3/100 loss 0.63", DeepSpeed, Megatron, torchtitan, llm.c, verl, …

_INTEGER = r"\d{1,15}(?:,\d{3}){0,4}"
_STEP_WORDS = ("step", "iter", "num_updates")  # each counter's name holds one of them
_STEP = re.compile(
    r"(?:(?:global|train(?:ing)?|optimi[sz]er)[ _]?steps?|steps?|iterations?|iters?|num_updates)"
    r"\s{0,4}[:=：#]?\s{0,9}\[?\s{0,9}("
    + _INTEGER
    + r")(?:\s{0,4}/\s{0,9}("
    + _INTEGER
    + r"))?(?![\w%]|[.:]\d)"
)  # in lower case, and no part of a longer name
_DEEPSPEED_TIMER = re.compile(r"epoch=\d+/micro_step=\d+/global_step=(\d{1,15})")
_ITEM_OF_EPOCH = re.compile(
    r"(Epoch(?:\(train\))?:? {1,2}\[(\d{1,9})\]\s{1,4})\[\s*(\d{1,15})/(\d{1,15})\]"
)  # mmengine, DETR
_SHORT = re.compile(r"s:(\d{1,15}) (?:trl:(" + NUMBER + r")|tel:)")  # llm.c's log file
_LOSS = re.compile(r"loss\s?[:=：]")
_LOSS_FIRST = re.compile(r"(?:train(?:ing)?[ _])?(?:\w{1,12}_)?loss\s?[:=：]")
_LOSS_NAME = 22  # characters that this may begin before its last word
# What may stand before a metric in its line: a logger's lead, and words such as "epoch 3, rank 0".
_LEAD = re.compile(
    r"(?:.{0,160}(?: - |>> ?|\| |\][: ]\s*|: |, |\t))?"
    r" {0,3}(?:(?:\b(?:train(?:ing)?|epochs?|rank|gpu|worker|node|ppo|global|local|at|info|\d[\d.]*s?)\b|\[)"
    r"[\s:=：,，|/\[\]()-]*)*",
    re.IGNORECASE,
)
_CODE = re.compile(r"""["'`{};#\\]|\((?!\d|train\))|\b(?:return|def|for|if|self)\b""")
_FIGURE = re.compile(r"[A-Za-z_)]\s?[:=]\s?" + NUMBER)


_ZEROED = str.maketrans("123456789", "0" * 9)


def _leads(before: str) -> bool:
    """Whether this may stand before a metric. Which digits it holds does not matter."""
    return not before or (len(before) <= 200 and _leads_zeroed(before.translate(_ZEROED)))


@lru_cache(maxsize=1024)  # loggers' leads differ in their digits only
def _leads_zeroed(before: str) -> bool:
    return _CODE.search(before) is None and _LEAD.fullmatch(before) is not None


def _find_step(lower: str) -> re.Match[str] | None:
    found = _STEP.search(lower)
    while found is not None and (before := lower[found.start() - 1 : found.start()]):
        if not (before.isalnum() or before in "_/.-"):
            break
        found = _STEP.search(lower, found.start() + 1)
    return found


def _from_text(text: str) -> _Found | None:
    timer = _DEEPSPEED_TIMER.search(text) if "/micro_step=" in text else None
    if timer:
        return int(timer[1]), None, memory(text), "timer"
    lower = lowered(text)
    found = _find_step(lower) if may_hold(lower, _STEP_WORDS) else None
    if found is None or not _leads(text[: found.start()]):
        item = _from_epoch_item(text) if "Epoch" in text else None
        return item or _from_loss_first(text, lower)
    step = int(found[1].replace(",", ""))
    total = int(found[2].replace(",", "")) if found[2] else None
    rest = text[found.end() :]
    values = keyed(rest)
    if not values:
        bare = not rest.strip(" ]:.,|") and total is not None
        if not bare and not (total is not None and _FIGURE.search(rest)):
            return None
    epoch = _EPOCH_BEFORE.search(text, 0, found.start()) if "epoch" in lower else None
    if epoch:  # perhaps counted within the epoch: then its total is not the run's
        values.setdefault("epoch", float(epoch[1]))
        total = None
    return step, total or None, values, _series(text[: found.start(1)].translate(_ZEROED))


_WORD = re.compile(r"[A-Za-z]+")
_EPOCH_BEFORE = re.compile(r"\bepochs?[\s:=\[]{0,4}(\d+(?:\.\d+)?)", re.IGNORECASE)


@lru_cache(maxsize=1024)
def _series(before: str) -> str:
    """A name for the counter that this stands before."""
    return "text " + "".join(_WORD.findall(before))[-24:]


def _from_short(text: str) -> _Found | None:
    found = _SHORT.match(text)
    if found is None:
        return None
    values = keyed(text[found.end() :])
    if found[2]:
        values["loss"] = number(found[2])
    return int(found[1]), None, values, "text s"


def _from_epoch_item(text: str) -> _Found | None:
    """Loops that count the batches of an epoch: the steps of the epochs before are added."""
    found = _ITEM_OF_EPOCH.search(text)
    if found is None or not _leads(text[: found.start()]):
        return None
    values = keyed(text[found.end() :])
    if "loss" not in values:
        return None
    epoch, done, length = int(found[2]), int(found[3]), int(found[4])
    values["epoch"] = float(epoch)
    return epoch * length + done, None, values, "epoch items"


def _from_loss_first(text: str, lower: str) -> _Found | None:
    loss = _LOSS.search(lower)
    found = _LOSS_FIRST.search(lower, max(0, loss.start() - _LOSS_NAME)) if loss else None
    if found is None or not _leads(text[: found.start()]):
        return None
    values = keyed(text[found.start() :])
    return (None, None, values, "loss") if "loss" in values else None


# ---- memory


def _from_memory(text: str) -> _Found | None:
    values = memory(text)
    return (None, None, values, "") if values else None
