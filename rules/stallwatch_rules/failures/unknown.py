"""Exceptions that no rule knows: kept per stream in bounded memory, folded over the ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from stallwatch_rules.failures.raised import Frame, Raised
from stallwatch_rules.records import Line, UnknownException
from stallwatch_rules.text.masking import masked, repeats
from stallwatch_rules.text.redact import redact
from stallwatch_rules.text.reported import earliest, place

MAX_KINDS = 200  #: different exceptions kept per stream; a log may hold millions of tracebacks
USER_FRAMES, LIBRARY_FRAMES = 8, 4

Key = tuple[str, str, str]


class Seen(msgspec.Struct):
    """One exception in one stream, as often as it came."""

    raised: Raised  #: the first time
    count: int
    last: Raised


class ExceptionTable(msgspec.Struct):
    """The exceptions of one stream."""

    seen: dict[Key, Seen] = {}

    def add(self, raised: Raised) -> None:
        """Count an exception that was raised."""
        key = _key(raised)
        known = self.seen.get(key)
        if known is not None:
            known.count += 1
            known.last = raised
            known.raised.rules |= raised.rules
        elif len(self.seen) < MAX_KINDS:
            self.seen[key] = Seen(raised, 1, raised)

    def with_left(self, left: Iterable[Raised]) -> ExceptionTable:
        """A copy that also counts what stands unfinished at the stream's present end."""
        copy = ExceptionTable({key: Seen(s.raised, s.count, s.last) for key, s in self.seen.items()})
        for raised in left:
            copy.add(raised)
        return copy


def unknown_in(table: ExceptionTable, known: Collection[str]) -> list[Seen]:
    """The failures of a stream in which none of the known rules matched."""
    return [
        seen
        for seen in table.seen.values()
        if seen.raised.kind in ("failure", "snippet") and seen.raised.rules.isdisjoint(known)
    ]


def fold(seen: Iterable[Seen]) -> list[UnknownException]:
    """The same exception on many ranks as one record, the earliest first."""
    groups: dict[Key, list[Seen]] = {}
    for one in seen:
        groups.setdefault(_key(one.raised), []).append(one)
    ordered = sorted(groups.values(), key=lambda group: _order(earliest(s.raised.line for s in group)))
    return [_record(group) for group in ordered]


def _record(group: list[Seen]) -> UnknownException:
    line = earliest(one.raised.line for one in group)
    first = next(one.raised for one in group if one.raised.line is line)
    return UnknownException(
        exception=first.exception,
        message=redact(repeats(first.message)[0]),
        ranks=sorted({one.raised.line.rank for one in group if one.raised.line.rank is not None}),
        count=sum(one.count for one in group),
        first=place(line, first.step),
        frames=[redact(frame) for frame in shown_frames(first.frames)],
        root=redact(first.root),
    )


def shown_frames(frames: list[Frame]) -> list[str]:
    """The innermost calls, the user's own before the libraries'; innermost last in each."""
    user = [str(frame) for frame in frames if not frame.library]
    library = [str(frame) for frame in frames if frame.library]
    return user[-USER_FRAMES:] + library[-LIBRARY_FRAMES:]


def _key(raised: Raised) -> Key:
    where = next((str(frame) for frame in reversed(raised.frames) if not frame.library), "")
    return raised.exception, masked(raised.message)[:200], masked(where.rpartition("/")[2])


def _order(line: Line) -> tuple[bool, float, bool, int, str, int]:
    return (
        line.time is None,
        line.time or 0.0,
        line.rank is None,
        line.rank or 0,
        line.source,
        line.number,
    )
