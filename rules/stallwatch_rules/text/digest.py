"""Much said in little: ranks as ranges, counts, durations and times as people read them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.records import Diagnosis, UnknownException


def counted(count: int, noun: str) -> str:
    """``1 line``, ``2,000 lines``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


MAX_DIGEST = 12  #: lines; what many kinds of ends tell is no digest
MAX_TITLE = 160


def fold_ranks(ranks: Iterable[int]) -> str:
    """Ranks as ranges: ``[0, 1, 2, 3, 8]`` is ``0–3, 8``; two neighbours stay two numbers."""
    ordered = sorted(set(ranks))
    parts: list[str] = []
    start = 0
    for index in range(1, len(ordered) + 1):
        if index < len(ordered) and ordered[index] == ordered[index - 1] + 1:
            continue
        first, last = ordered[start], ordered[index - 1]
        if last - first >= 2:
            parts.append(f"{first}–{last}")
        else:
            parts += [str(rank) for rank in ordered[start:index]]
        start = index
    return ", ".join(parts)


def short_duration(seconds: float) -> str:
    """``0.21 s``, ``412 s`` up to ten minutes, then minutes or hours."""
    if seconds < 1:
        return f"{seconds:.2g} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 600:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def rank_digest(diagnosis: Diagnosis) -> list[Text]:
    """Return which ranks ended in what, the primary cause first: ``rank 7: CUDA out of memory``.

    Empty where no rank is known, or where all of them ended in the same.
    """
    primary = diagnosis.primary
    ends: list[tuple[list[int], Text, str | None, bool]] = [
        (
            finding.ranks,
            finding.title,
            finding.first.time,
            primary is not None and finding.rule == primary.rule,
        )
        for finding in diagnosis.findings
        if finding.ranks and finding.harm == "fatal" and finding.role in ("cause", "symptom")
    ]
    if diagnosis.in_trouble:
        ends += [
            (one.ranks, _title(one), one.first.time, False)
            for one in diagnosis.unknown
            if one.ranks and one.exception
        ]
    if len({tuple(ranks) for ranks, *_ in ends}) < 2:
        return []
    ends.sort(key=lambda end: not end[3])
    began = ends[0][2]
    return [_digest_line(ranks, title, time, began) for ranks, title, time, _ in ends[:MAX_DIGEST]]


def _title(unknown: UnknownException) -> str:
    return shortened(f"{unknown.exception}: {unknown.message}".removesuffix(": "))


def shortened(text: str, most: int = MAX_TITLE) -> str:
    """The text, cut where it is longer than so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _digest_line(ranks: list[int], what: Text, time: str | None, began: str | None) -> Message:
    apart = parse_iso(time) - parse_iso(began) if time is not None and began is not None else 0.0
    count, folded = len(ranks), fold_ranks(ranks)
    if abs(apart) < 1:
        return message("diagnosis.digest", count=count, ranks=folded, what=what)
    key = "diagnosis.digest-later" if apart > 0 else "diagnosis.digest-earlier"
    return message(key, count=count, ranks=folded, what=what, apart=abs(apart))


def parse_iso(time: str) -> float:
    """An ISO 8601 time of our records as Unix seconds; one without a zone is taken as UTC."""
    told = datetime.fromisoformat(time.replace("Z", "+00:00"))  # Python 3.10 does not read a ``Z``
    return (told if told.tzinfo else told.replace(tzinfo=timezone.utc)).timestamp()
