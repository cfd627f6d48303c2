"""Read values in plain text, such as ``step 3/100 loss 0.63``.

Examples of programs that print such text are DeepSpeed, Megatron-LM, NeMo, torchtitan, mmengine, and llm.c.
"""

from __future__ import annotations

import re
from functools import lru_cache

from stallwatch_rules.records import EVALUATION
from stallwatch_rules.samples.fields import Found
from stallwatch_rules.samples.pairs import memory, metrics_by_field, rates
from stallwatch_rules.samples.prefixes import (
    evaluates,
    evaluates_mean,
    is_aggregate,
    may_precede,
    with_zeroed_digits,
)
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.numbers import NUMBER, PAD, lowered, number

_ATTEMPTED = lazy(r"Attempted loss scale: (" + NUMBER + r")(?:, reducing to (" + NUMBER + r"))?")
_RESCALED = lazy(r"(?:Reducing|Increasing) dynamic loss scale from \S+ to (" + NUMBER + r")")


def from_loss_scaler(text: str) -> Found | None:
    """Return the values in a line that the dynamic loss scalers of DeepSpeed print.

    Each skipped step is counted once.

    ZeRO prints ``OVERFLOW!``. Optimizers that do not use ZeRO print ``Grad overflow on iteration …`` and
    another line about the same overflow, which has different words.
    """
    values: dict[str, float] = {}
    if "OVERFLOW!" in text or "Grad overflow on iteration" in text:
        if "No Grad" in text:
            return None
        values["overflow"] = 1.0
    if "loss scale" in text:
        found = _ATTEMPTED.search(text) or _RESCALED.search(text)
        if found:
            values["loss_scale"] = number(found[found.lastindex or 1])
    return Found(None, None, values, "") if values else None


_ZH_NUMBER = r"\d{1,15}(?:,\d{3}){0,4}"
_ZH_COUNT = rf"({_ZH_NUMBER})(?:\s?/\s?({_ZH_NUMBER}))?"
_ZH_TOTAL = rf"\s?[,，、/(（]?\s?(?:总共|一共|总计|共计|共)\s?({_ZH_NUMBER})\s?[步轮](?!\w)"
_ZH_STEP = lazy(rf"第\s?{_ZH_COUNT}\s?(?:个?(?:训练|迭代))?([步轮])(?:{_ZH_TOTAL}|(?!\w))")
_ZH_LEAD = lazy(r"(?:正在)?训练(?:中|进度)?\s?[：:]\s{0,4}(?=第\s?\d)")  # text before the step
# The level or the kind of the line, which precedes the step.
_ZH_HEAD = lazy(r"(?<!\w)(信息|调试)(?!\w)|[【\[]\s?(?:(训练)(?:中|进度)?|验证|评估|测试)\s?[】\]]\s?")
_ZH_UNIT = lazy(r"(?<=\d)\s?步(?!\w)")
_ZH_NAMES = {
    "验证损失": "val loss",
    "评估损失": "eval loss",
    "测试损失": "test loss",
    "训练损失": "train loss",
    "损失值": "loss",
    "损失": "loss",
    "学习率": "lr",
    "梯度范数": "grad_norm",
    "全局步数": "step",
    "训练步数": "step",
    "训练步骤": "step",
    "训练步": "step",
    "步骤": "step",
    "步数": "step",
    "迭代次数": "iteration",
    "迭代": "iteration",
    "轮次": "epoch",
}
# Names of counters and metrics. A name must not be part of a longer word (总步数 is the total) and must be
# followed by a value.
_ZH_NAME = lazy(
    r"(?<!\w)(" + "|".join(_ZH_NAMES) + r")(?:" + PAD + "[:=：])?" + PAD
    + r"(?=[-+]?(?:\[\s{0,4})?(?:\d|\.\d|nan\b|inf))",
    re.IGNORECASE,
)  # fmt: skip
# A loss in the middle of a sentence, such as "安装 loss 0.5 版本", is not a metric.
_ZH_PROSE = lazy(
    r"(?<=[\u4e00-\u9fff])(?<!训练)(?<!平均)(?<!当前)(?<!\d步)(?<!\d 步)\s{1,4}loss", re.IGNORECASE
)


def in_english(text: str) -> str:
    """Translate the names of counters and metrics in a Chinese line into English."""
    if _ZH_PROSE.search(text):
        return text
    text = _ZH_HEAD.sub(_head_in_english, text, count=2)
    text = _ZH_LEAD.sub("", text, count=1)
    text = _ZH_STEP.sub(_step_in_english, text)
    text = _ZH_NAME.sub(lambda found: _ZH_NAMES[found[1]] + "=", text)
    return _ZH_UNIT.sub("", text)


def _head_in_english(found: re.Match[str]) -> str:
    return "INFO" if found[1] else "[train] " if found[2] else "[eval] "


def _step_in_english(found: re.Match[str]) -> str:
    done, of, unit, total = found.groups()
    total = of or total
    return ("step " if unit == "步" else "epoch ") + (f"{done}/{total}" if total else done)


_INTEGER = r"\d{1,15}(?:,\d{3}){0,4}"
_STEP_WORDS = ("step", "iter", "num_updates")  # each name of a counter contains one of these words
_STEP_NAME = 10  # maximum number of characters before such a word in the name of a counter

# This expression searches lowercase text. ``_find_step`` ignores matches that are part of a longer name.
_STEP = lazy(
    r"(?:(?:global|train(?:ing)?|optimi[sz]er)[ _]?steps?|steps?"
    r"|iterations?|iters?(?:\(train\))?|num_updates)"
    r"\s{0,4}[:=：#]?\s{0,9}\[?\s{0,9}(" + _INTEGER + r")(?:\s{0,4}/\s{0,9}(" + _INTEGER + r"))?"
    r"(?![\w%]|[.:]\d)"
)  # fmt: skip
_DEEPSPEED_TIMER = lazy(r"epoch=\d+/micro_step=\d+/global_step=(\d{1,15})")
_ITEM_OF_EPOCH = lazy(
    r"(?:(?:Epoch(?:\(train\))?|Train: data epoch):? {1,2}|Train(?:ing)?(?:: {1,2}|\] ?))"
    r"\[\s*(\d{1,9})(?:/\d{1,9})?\]\s{0,4}\[\s*(\d{1,15})/\s*(\d{1,15})\]"
)  # formats of mmengine, DETR, LAVIS, DINO, Swin Transformer, and the examples with an AverageMeter

# Format of MiniMind, which counts epochs from 1.
_ITEM_OF_EPOCHS = lazy(r"Epoch:?\s?\[(\d{1,9})/(\d{1,9})\]\((\d{1,15})/(\d{1,15})\)")
# Counters within an epoch: batches with their total, and items as in the PyTorch MNIST example.
_BATCH = lazy(
    r"\bbatch(?:es)?\s{0,4}[:=#]?\s{0,4}\[?\s{0,4}"
    r"(?P<done>" + _INTEGER + r")\s{0,4}/\s{0,4}(" + _INTEGER + r")(?![\w%]|[.:]\d)"
)  # fmt: skip
_SHARE_OF_EPOCH = lazy(
    r"(?:epoch:?|train:)\s{1,4}(?P<epoch>\d{1,9})(?:/\d{1,9})?,? {0,2}"
    r"\[\s{0,9}(?P<done>\d{1,15})\s{0,4}/\s{0,9}(\d{1,15})(?: \(\s{0,3}\d{1,15}(?:\.\d+)?%\))?\]"
)  # formats of the PyTorch MNIST example, timm (Train: 0 [ 50/1251 ( 4%)]), and CoreNet

# A line in the log file of llm.c.
_SHORT = lazy(r"s:(\d{1,15}) (?:trl:(" + NUMBER + r")|tel:(" + NUMBER + r"))")
_LOSS = lazy(r"loss\s?[:=：]")
_LOSS_FIRST = lazy(
    r"(?:(?:batch|current|(?P<mean>average|avg|mean)|eval(?:uation)?|val(?:id(?:ation)?)?|test|dev)[ _])?"
    r"(?:train(?:ing)?[ _])?(?:\w{1,12}_)?loss\s?[:=：]"
)
_LOSS_IS = lazy(r", loss is (" + NUMBER + r")$")  # format in which MindSpore prints the loss after the step
_OLMO = lazy(r"\s{4}train/(?:CrossEntropyLoss|CE loss)=(" + NUMBER + r")$")  # a line in a record from OLMo

# A text such as "loss 2.0 lr 1e-5 " before "step 3". Only spaces, commas, semicolons, and vertical bars
# separate the metrics.
_LOSS_THEN_STEP = lazy(
    r"(?:train(?:ing)?[ _])?\b(?:[a-z]{1,12}_)?loss(?:\s?[:=])?" + PAD + NUMBER
    + r"(?:[,;| ]{1,3}[a-z_]{2,20}(?:\s?[:=])?" + PAD + NUMBER + r"){0,6}[,;| ]{1,4}(?:at )?$"
)  # fmt: skip
_LOSS_BEFORE = 200  # maximum number of characters that ``_LOSS_THEN_STEP`` searches before the step
_LOSS_NAME = 30  # maximum number of characters before "loss" in a match of ``_LOSS_FIRST``
_DONE_IN = lazy(
    r"[\s:,|-]{0,4}(?:done|finished|completed|took)(?: in)? (" + NUMBER + r") ?s(?:ec(?:onds?)?)?\b[\s.]*$"
)
_FIGURE = lazy(r"[A-Za-z_)]\s?[:=]\s?" + NUMBER)
_EPOCH_BEFORE = lazy(r"\bepochs?[\s:=\[]{0,4}(\d+(?:\.\d+)?)", re.IGNORECASE)
_WORD = lazy(r"[A-Za-z]+")
_MEGATRON_EVAL = lazy(
    r"\s?(?:valid|validation|test) loss at (?:iteration (\d{1,15})|the end of training)[^|]{0,60}"
    r"\| lm loss value: (" + NUMBER + r")"
)
_MINDFORMERS = lazy(r"\{ ?(?=Epoch:\[)")


def from_text(text: str) -> Found | None:
    """Return the values in a line whose message begins with a step or with a loss."""
    timer = _DEEPSPEED_TIMER.search(text) if "/micro_step=" in text else None
    if timer:
        values = memory(text)
        rates(text[timer.end() :].lower(), values)
        return Found(int(timer[1]), None, values, "timer")
    if "{" in text:
        text = _MINDFORMERS.sub("", text, count=1)
    lower = lowered(text)
    if " loss at " in lower:
        return _from_megatron_eval(lower)
    found = _find_step(lower)
    before = text[: _metrics_start(lower, found.start())] if found is not None else ""
    if found is not None and found[2] and "loss" in lower:
        before = before.lstrip()  # an indented "3/100" is not source code
    if found is None or not may_precede(before):
        has_epoch = "poch" in text or ("][" in text and "Train" in text)
        item = _from_epoch_item(text) if has_epoch else None
        return item or _from_epoch_part(text, lower) or _from_loss_first(text, lower)
    step = int(found[1].replace(",", ""))
    total = int(found[2].replace(",", "")) if found[2] else None
    rest = text[found.end() :]
    values = metrics_by_field(rest)
    stated = _LOSS_IS.match(lower, found.end()) if ", loss is " in lower else None
    if stated is not None:
        values["loss"] = number(stated[1])
    if "loss" not in values and "loss" in lower[: found.start()]:  # the loss can precede the step
        values = {**metrics_by_field(text[: found.start()]), **values}
    if "steps" in found[0] and total is None and values.keys() == {"learning_rate"}:
        return None  # the line lists settings, such as the planned number of steps
    done = _DONE_IN.match(rest) if total is not None else None
    if done is not None:
        values["step_seconds"] = number(done[1])
    is_bare = not rest.strip(" ]:.,|")
    is_metrics_line = bool(values) or (total is not None and (is_bare or _FIGURE.search(rest) is not None))
    rates(lower[found.end() :], values)
    if not is_metrics_line:
        return Found(step, total or None, values, "") if "eval_loss" in values else None
    epoch = _EPOCH_BEFORE.search(text, 0, found.start()) if "epoch" in lower else None
    if epoch:  # the total can be the number of steps in an epoch or in the run
        values.setdefault("epoch", float(epoch[1]))
        if total is not None:
            values["stated_steps"], total = float(total), None
    series = _series(with_zeroed_digits(text[: found.start(1)]))
    return _as_results(Found(step, total or None, values, series), text[: found.start()])


def _as_results(found: Found, before: str) -> Found:
    """If the text before the values mentions an evaluation, return the values as results of an evaluation.

    The loss of an evaluation is not a training loss, whatever name the program prints. The batches of an
    evaluation show that the run is alive, but they are not steps of the run.
    """
    if not evaluates(before):
        return found
    loss = found.values.get("eval_loss", found.values.get("loss"))
    values = {"eval_loss": loss} if loss is not None else {}
    return found._replace(values=values, series=EVALUATION)


def _metrics_start(lower: str, step: int) -> int:
    """Return the offset of the metrics in a line.

    The metrics begin with the step or with a loss before the step.
    """
    before = _LOSS_THEN_STEP.search(lower, max(0, step - _LOSS_BEFORE), step) if "loss" in lower else None
    return before.start() if before is not None else step


def _find_step(lower: str) -> re.Match[str] | None:
    starts = [at for word in _STEP_WORDS if (at := lower.find(word)) >= 0]
    found = _STEP.search(lower, max(0, min(starts) - _STEP_NAME)) if starts else None
    while found is not None and (before := lower[found.start() - 1 : found.start()]):
        if not (before.isalnum() or before in "_/.-"):
            break
        found = _STEP.search(lower, found.start() + 1)
    return found


@lru_cache(maxsize=1024)
def _series(before: str) -> str:
    """Return a name for the counter that follows this text. Counters with the same name form a series."""
    return "text " + "".join(_WORD.findall(before))[-24:]


def from_short(text: str) -> Found | None:
    """Return the values in a line of an llm.c log file.

    Losses have names of one or two letters in this file.
    """
    found = _SHORT.match(text)
    if found is None:
        return None
    values = metrics_by_field(text[found.end() :])
    if found[2]:
        values["loss"] = number(found[2])
    else:
        values["eval_loss"] = number(found[3])
    return Found(int(found[1]), None, values, "text s")


def _from_epoch_item(text: str) -> Found | None:
    """Return the values in a line that counts the batches of an epoch.

    The steps of previous epochs are added to the count.
    """
    found = (_ITEM_OF_EPOCHS.search(text) if "](" in text else None) or _ITEM_OF_EPOCH.search(text)
    if found is None or not may_precede(text[: found.start()]):
        return None
    rest = text[found.end() :]
    values = metrics_by_field(rest)
    rates(lowered(rest), values)
    epoch, *epochs, done, length = map(int, found.groups())
    if not values or not (epochs or "loss" in values):
        return None
    values["epoch"] = float(epoch)
    if epochs:  # the number of epochs determines the last step of the run
        step, total = max(epoch - 1, 0) * length + done, epochs[0] * length
        item = Found(step, total, values, "epoch items of all")
    else:
        item = Found(epoch * length + done, None, values, "epoch items")
    return _as_results(item, text[: found.start()])


def _from_epoch_part(text: str, lower: str) -> Found | None:
    """Return the values in a line that shows a loss and the progress within an epoch but no total."""
    found = _BATCH.search(lower) if "batch" in lower else None
    if found is None and "[" in lower and ("epoch" in lower or "train:" in lower):
        found = _SHARE_OF_EPOCH.search(lower)
    if found is None or not may_precede(text[: found.start()]):
        return None
    values = metrics_by_field(text[found.end() :])
    if "loss" not in values:
        return None
    rates(lower[found.end() :], values)
    epoch = _EPOCH_BEFORE.search(text, 0, found.end())
    if epoch:
        values.setdefault("epoch", float(epoch[1]))
    elif found.re.pattern == _SHARE_OF_EPOCH.pattern:
        values["epoch"] = float(found["epoch"])
    series = _series(with_zeroed_digits(text[: found.start("done")]))
    item = Found(int(found["done"].replace(",", "")), None, values, series)
    return _as_results(item, text[: found.start()])


def _from_loss_first(text: str, lower: str) -> Found | None:
    olmo = _OLMO.match(text) if text.startswith("    train/") else None
    if olmo is not None:
        return Found(None, None, {"loss": number(olmo[1])}, "loss")
    loss = _LOSS.search(lower)
    found = _LOSS_FIRST.search(lower, max(0, loss.start() - _LOSS_NAME)) if loss else None
    before = text[: found.start()] if found is not None else ""
    if found is None or not may_precede(before) or is_aggregate(before):
        return None
    values = metrics_by_field(text[found.start() :])
    rates(lower[found.start() :], values)
    if "loss" not in values:
        measured = {"eval_loss": values["eval_loss"]} if "eval_loss" in values else None
        return Found(None, None, measured, EVALUATION) if measured else None
    if not found["mean"]:
        return _as_results(Found(None, None, values, "loss"), before)
    if evaluates_mean(before):
        return Found(None, None, {"eval_loss": values["loss"]}, EVALUATION)
    named = lower[: found.end()]  # the mean of any other quantity can be the result of a benchmark
    return Found(None, None, values, "loss mean") if "epoch" in named or "train" in named else None


def _from_megatron_eval(lower: str) -> Found | None:
    found = _MEGATRON_EVAL.match(lower)
    if found is None:
        return None
    return Found(int(found[1]) if found[1] else None, None, {"eval_loss": number(found[2])}, "")
