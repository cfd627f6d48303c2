"""What is wrong with a source of numbers, in Chinese. Sources know no reader, and tell it in English."""

from __future__ import annotations

import re
from functools import cache

#: Sentences of `sources` and their Chinese; {} is a fact, such as an address or another program's error.
_SENTENCES = (
    ("Prometheus does not answer, so numbers are missing: {}", "Prometheus 无响应，因此缺少数据：{}"),
    ("Numbers cannot be kept: {}", "指标数据无法保存：{}"),
    (
        "Another dashboard holds {}, so this one keeps its numbers in memory only."
        " Close one of the two to have history that survives a restart.",
        "另一个看板正占用 {}，因此本看板只在内存中保存数据。关闭其中一个，历史数据才能在重启后保留。",
    ),
    (
        "{} cannot be used ({}), so numbers are kept in memory only."
        " Move the file away and start again to have history that survives a restart.",
        "{} 无法使用（{}），因此数据只保存在内存中。移走该文件并重新启动，历史数据才能在重启后保留。",
    ),
    ("answers with a web page instead of metrics", "返回的是网页，不是指标"),
    ("answers HTTP {}", "返回 HTTP {}"),
    ("does not answer ({})", "无响应（{}）"),
    ("sends more than {} MiB", "返回的数据超过 {} MiB"),
    ("is too slow", "响应太慢"),
    ("its address is another agent's by now", "该地址现在属于另一个 agent"),
    ("gives no numbers of {}", "没有 {} 的指标"),
    ("more than {} numbers on one page", "一页上的指标超过 {} 个"),
    ("not a metrics page: {}", "不是指标页面：{}"),
    ("not an http address", "不是 http 地址"),
    ("{}: not an http address", "{}：不是 http 地址"),
)


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    return [
        (re.compile(re.escape(english).replace(r"\{\}", "(.*?)"), re.DOTALL), chinese)
        for english, chinese in _SENTENCES
    ]


def retold(text: str, language: str) -> str:
    """A source's sentence in the reader's language; another one as it is."""
    if language.startswith("zh"):
        for pattern, chinese in _patterns():
            if (found := pattern.fullmatch(text)) is not None:
                return chinese.format(*found.groups())
    return text
