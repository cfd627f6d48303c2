"""Chinese names of what a metrics line tells, put into the words that the readers of plain text know."""

from __future__ import annotations

import re

from stallwatch_rules.text.lazy import lazy

_COUNT = r"(\d{1,15}(?:,\d{3}){0,4}(?:\s?/\s?\d{1,15}(?:,\d{3}){0,4})?)"
_STEP = lazy(r"第\s?" + _COUNT + r"\s?(?:个?(?:训练|迭代))?(步|轮)(?!\w)")  # the number stands inside
_LEAD = lazy(r"(?:正在)?训练(?:中|进度)?\s?[：:]\s{0,4}(?=第\s?\d)")  # before the step: it says no more
_UNIT = lazy(r"(?<=\d)\s?步(?!\w)")
_NAMES = {
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
    "训练步": "step",
    "步数": "step",
    "迭代次数": "iteration",
    "迭代": "iteration",
    "轮次": "epoch",
}
# Each is a name by itself: no part of a longer word (总步数 is the total), and a value follows.
_NAME = lazy(
    r"(?<!\w)(" + "|".join(_NAMES) + r")\s{0,4}[:=：]?\s{0,4}(?=[-+]?(?:\[\s{0,4})?(?:\d|\.\d|nan\b|inf))",
    re.IGNORECASE,
)
# "安装 loss 0.5 版本": what a sentence says of a loss is no metric.
_PROSE = lazy(r"(?<=[\u4e00-\u9fff])(?<!训练)(?<!平均)(?<!当前)\s{1,4}loss", re.IGNORECASE)


def in_english(text: str) -> str:
    """The line with its counters and metrics named in English; prose stays as it is."""
    if _PROSE.search(text):
        return text
    text = _LEAD.sub("", text, count=1)
    text = _STEP.sub(lambda found: ("step " if found[2] == "步" else "epoch ") + found[1], text)
    text = _NAME.sub(lambda found: _NAMES[found[1]] + "=", text)
    return _UNIT.sub("", text)
