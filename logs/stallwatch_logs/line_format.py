"""Determine the prefix that all lines of a log share, such as a prefix from a log collector.

The evidence is either the prefix itself or the numbers that are found in the lines after the prefix is
removed.
"""

from __future__ import annotations

from stallwatch_rules.lines.line_prefix import LinePrefix, certain_prefix, likely_prefixes
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.samples import extract
from stallwatch_rules.text.lazy import lazy

_SHOWN = 16 * 1024  # number of bytes that are searched for numbers after a likely prefix
_DIGITS = lazy(rb"\d+")
_ALIKE = 40  # number of first lines that are compared to find logs of ranks with the same prefix
_MOST_ALIKE = 100


def prefix_of(head: bytes) -> LinePrefix | None:
    """Return the prefix to remove from all lines of a log, or ``None`` if no prefix is certain.

    A likely prefix is returned only if its removal reveals many additional steps and losses. The result is
    stored and reused for logs whose beginnings differ only in numbers, such as the logs of a run's ranks.
    """
    beginning = _DIGITS.sub(b"0", b"\n".join(head[:_SHOWN].split(b"\n", _ALIKE)[:_ALIKE]))
    if beginning not in _leads:
        if len(_leads) >= _MOST_ALIKE:
            _leads.clear()
        _leads[beginning] = _prefix_of(head)
    return _leads[beginning]


_leads: dict[bytes, LinePrefix | None] = {}


def _prefix_of(head: bytes) -> LinePrefix | None:
    lead = certain_prefix(head)
    if lead is not None:
        return lead
    text = head[:_SHOWN]
    leads = likely_prefixes(text)
    if not leads:
        return None
    known, lines = _samples_in(text, None)
    enough = known + known // 2
    if lines <= enough:  # the text has too few lines without a sample
        return None
    return next((lead for lead in leads if _samples_in(text, lead)[0] > enough), None)


def _samples_in(text: bytes, lead: LinePrefix | None) -> tuple[int, int]:
    """Return two counts: the lines of `text` that show a step or a loss, and all lines of `text`.

    The states of progress bars are not counted, because a bar has its own text at the start of each line.
    """
    reader = LineReader("", lead=lead)
    lines = reader.feed(text) + reader.finish()
    samples = map(extract, lines)
    return sum(sample is not None and not sample.from_bar for sample in samples), len(lines)
