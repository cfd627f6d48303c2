"""Much said in little: ranks as ranges, durations and times as people read them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime


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


def parse_iso(time: str) -> float:
    """An ISO 8601 time of our records as Unix seconds (Python 3.10 does not read a ``Z``)."""
    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
