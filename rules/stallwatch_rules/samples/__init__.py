"""Read the metrics that trainers print. The metrics in one line form at most one sample.

Only metrics lines are read. Each format must match at the start of the message. Therefore, source code,
configuration dumps, and prose that mention a loss or a step are ignored. Each module reads one kind of
format.
"""

from __future__ import annotations

from stallwatch_rules.records import Line, Sample
from stallwatch_rules.samples.bars import (
    from_bar,
    from_counted_bar,
    from_rich_bar,
    from_written_bar,
    may_be_counted,
)
from stallwatch_rules.samples.dicts import MARK, from_dict, from_mlperf
from stallwatch_rules.samples.fields import Found
from stallwatch_rules.samples.pairs import memory, rates
from stallwatch_rules.samples.templates import TemplateReader
from stallwatch_rules.samples.text import from_loss_scaler, from_short, from_text, in_english

__all__ = ["extract"]

_from_text = TemplateReader(from_text)


def extract(line: Line) -> Sample | None:
    """Return the sample of a line, or ``None`` if the line is not a metrics line."""
    text = line.text
    if "[" in text and ("<" in text or "it [" in text) and ("/s" in text or "s/" in text or "%|" in text):
        found = from_bar(text)
    elif "{" in text and "}" in text:
        found = from_mlperf(text) if MARK in text else from_dict(text)
    elif text.startswith("s:"):
        found = from_short(text)
    elif "━" in text:
        found = from_rich_bar(text) if "•" in text else from_counted_bar(text)
    elif may_be_counted(text):
        found = from_counted_bar(text)
    elif "Progress on:" in text:
        found = from_written_bar(text)
    else:
        found = None
    if found is None:
        if "步" in text or "损失" in text:
            text = in_english(text)
        if "oss" in text or "OVERFLOW" in text or "overflow" in text:
            found = from_loss_scaler(text) or _from_text(text)
        elif "memory (MB) |" in text or "MA " in text:
            found = _from_memory(text)
        elif "tep" in text or "iter" in text or "Iter" in text:
            found = _from_text(text)
        elif text.startswith("Average reward score:") or "amples/sec:" in text:  # a line from DeepSpeed-Chat
            found = _from_rates(text)
    if found is None:
        return None
    step, total, values, series = found
    return Sample(line.rank, line.time, step, total, values, series.startswith("bar"), series)


def _from_memory(text: str) -> Found | None:
    values = memory(text)
    if not values and "memory (MB) | allocated:" in text:  # a line from Megatron-LM
        rates(text.lower(), values)
    return Found(None, None, values, "") if values else None


def _from_rates(text: str) -> Found | None:
    values: dict[str, float] = {}
    rates(text.lower(), values)
    return Found(None, None, values, "") if values else None
