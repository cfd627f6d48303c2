"""From a line to what a report says of it: a place with an ISO time, its text redacted and cut."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

from stallwatch_rules.records import Line, Place
from stallwatch_rules.redact import redact

MAX_TEXT = 600  #: characters of a log line that a report carries


def iso(time: float | None) -> str | None:
    """Unix seconds as ISO 8601 in UTC."""
    if time is None:
        return None
    try:
        return (
            datetime.fromtimestamp(time, timezone.utc)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
    except (OverflowError, OSError, ValueError):
        return None


def shown(text: str) -> str:
    """A log line as a report carries it: no secret, not endless."""
    clean = redact(text.strip())
    return clean if len(clean) <= MAX_TEXT else clean[: MAX_TEXT - 1] + "…"


def place(line: Line, step: int | None) -> Place:
    """Where a line stands."""
    return Place(line.rank, line.source, line.number, iso(line.time), step, shown(line.text))


def earliest(lines: Iterable[Line]) -> Line:
    """The first of lines from several streams: by time where all know theirs, else the lowest rank's.

    Never by the order in which the streams were read: another order must not give another answer.
    """
    candidates = list(lines)
    timed = all(line.time is not None for line in candidates)
    return min(
        candidates,
        key=lambda line: (
            line.time if timed and line.time is not None else 0.0,
            line.rank is None,
            line.rank if line.rank is not None else 0,
            line.source,
            line.number,
        ),
    )


def latest(lines: Iterable[Line]) -> Line:
    """The last of lines from several streams, in the same sense."""
    candidates = list(lines)
    timed = all(line.time is not None for line in candidates)
    return max(
        candidates,
        key=lambda line: (
            line.time if timed and line.time is not None else 0.0,
            line.rank is not None,
            -line.rank if line.rank is not None else 0,
            line.source,
            line.number,
        ),
    )
