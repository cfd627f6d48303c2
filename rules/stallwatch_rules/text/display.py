"""Convert log lines to the ``Place`` records of reports, with ISO times and shortened text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timezone

from stallwatch_rules.records import Line, Place

MAX_TEXT = 600  #: maximum number of characters of a log line in a report
_SEEN_BEFORE = 80  # number of characters to show before the part that must stay visible
_SEEN_AFTER = 300


def iso(time: float | None, *, zoned: bool = True) -> str | None:
    """Convert a Unix timestamp to ISO 8601 in UTC. If the log contains no time zone, omit the zone."""
    if time is None:
        return None
    try:
        stamp = datetime.fromtimestamp(time, timezone.utc).isoformat(timespec="milliseconds")
        return stamp.replace("+00:00", "Z" if zoned else "")
    except (OverflowError, OSError, ValueError):
        return None


def shown(text: str, find: Callable[[str], int] | None = None) -> str:
    """Return a log line as reports show it, with limited length.

    `find` returns the offset of the part of a long text that must stay visible.
    """
    clean = text.strip()
    if len(clean) > MAX_TEXT and find is not None and (at := find(clean)) > MAX_TEXT - _SEEN_AFTER:
        clean = "…" + clean[clean.find(" ", at - _SEEN_BEFORE, at) + 1 or at :]
    return clean if len(clean) <= MAX_TEXT else clean[: MAX_TEXT - 1] + "…"


def size_text(size: float) -> str:
    """Format a number of bytes with binary units, such as 512 B or 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1023.95:  # larger values would be rounded to 1024.0
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def place(line: Line, step: int | None, find: Callable[[str], int] | None = None) -> Place:
    """Return the ``Place`` record of a line, with the line's text in the form that ``shown`` returns."""
    return Place(
        line.rank, line.source, line.number, iso(line.time, zoned=line.zoned), step, shown(line.text, find)
    )


def earliest(lines: Iterable[Line]) -> Line:
    """Return the earliest line. If any line has no time, return the line from the lowest rank.

    The result does not depend on the order in which the streams were read.
    """
    lines = list(lines)
    return min(lines, key=_order(lines, first=True))


def latest(lines: Iterable[Line]) -> Line:
    """Return the latest line. If any line has no time, return the line from the lowest rank."""
    lines = list(lines)
    return max(lines, key=_order(lines, first=False))


def _order(lines: list[Line], *, first: bool) -> Callable[[Line], tuple[float, int, int, str, int]]:
    timed, sign = all(line.time is not None for line in lines), 1 if first else -1

    def key(line: Line) -> tuple[float, int, int, str, int]:
        time = line.time if timed and line.time is not None else 0.0
        return time, sign * (line.rank is None), sign * (line.rank or 0), line.source, line.number

    return key
