"""The lines of a run's log copies around a moment: bounded reading, found by time, folded over ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import BinaryIO

from stallwatch_dashboard.logtail import LogCopy, as_drawn
from stallwatch_exporter.runs.cri import parse_record
from stallwatch_rules.text.digest import fold_ranks

MOST_BYTES = 512 * 1024  #: of one copy, half before and half after the moment
MOST_COPIES = 128  #: ranks that are read for one view
MOST_LINES = 2000  #: of one view
_FOLD_SECONDS = 1.0  #: the same line of several ranks within this time is one
_NUMBERS = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class Line:
    """One line as a terminal showed it at last, its secrets masked."""

    time: float
    rank: int | None
    text: str


@dataclass(frozen=True)
class Folded:
    """A line that one or several ranks printed."""

    time: float
    ranks: tuple[int | None, ...]
    text: str


def around(copies: Sequence[LogCopy], at: float, seconds: float, most: int = MOST_BYTES) -> list[Line]:
    """The lines from `at - seconds` to `at + seconds` of these copies, in order of time.

    Reads at most `most` bytes of each copy, near the moment, and `MOST_COPIES` of them.
    """
    found: list[Line] = []
    for copy in copies[:MOST_COPIES]:
        try:
            with copy.path.open("rb") as lines:
                begin = max(_offset(lines, at - seconds), _offset(lines, at) - most // 2)
                found += _read(lines, begin, at + seconds, most, copy.rank)
        except OSError:
            continue
    return sorted(found, key=lambda line: line.time)


def matching(lines: Iterable[Line], search: str) -> list[Line]:
    """The lines that hold all words of `search`, whatever their case."""
    words = search.casefold().split()
    return [line for line in lines if all(word in line.text.casefold() for word in words)]


def fold(lines: Sequence[Line]) -> list[Folded]:
    """Lines of several ranks that came together and differ in numbers only are one, in the first's words."""
    found: list[Folded] = []
    latest: dict[str, int] = {}
    for line in lines:
        key = _NUMBERS.sub("0", line.text)
        index = latest.get(key)
        if index is not None:
            other = found[index]
            if line.time - other.time <= _FOLD_SECONDS and line.rank not in other.ranks:
                found[index] = Folded(other.time, (*other.ranks, line.rank), other.text)
                continue
        latest[key] = len(found)
        found.append(Folded(line.time, (line.rank,), line.text))
    return found


def drawn(lines: Sequence[Folded], at: float, zone: tzinfo | None, unknown: str) -> str:
    """Time, ranks and text of each line, the moment's place marked; of too many, the nearest."""
    before = sum(line.time < at for line in lines)
    first = max(0, min(before - MOST_LINES // 2, len(lines) - MOST_LINES))
    told = []
    for number, line in enumerate(lines[first : first + MOST_LINES], first):
        known = [rank for rank in line.ranks if rank is not None]
        who = fold_ranks(known) if known else unknown
        mark = "▶" if number == before else " "
        clock = f"{datetime.fromtimestamp(line.time, zone):%H:%M:%S.%f}"[:-3]
        told.append(f"{mark} {clock}  {who:>7}  {line.text}")
    return "\n".join(told)


def _read(lines: BinaryIO, begin: int, until: float, most: int, rank: int | None) -> list[Line]:
    lines.seek(begin)
    raw = lines.read(most)
    found, begun, since = [], b"", None
    for piece in raw.split(b"\n")[:-1]:
        record = parse_record(piece)
        if record is None:
            continue
        time = record.time_ns / 1e9
        if time > until:
            break
        begun, since = begun + record.text, since if since is not None else time
        if record.full:
            if text := as_drawn(begun):
                found.append(Line(since, rank, text))
            begun, since = b"", None
    if since is not None and (text := as_drawn(begun)):
        found.append(Line(since, rank, text))
    return found


def _offset(lines: BinaryIO, time: float) -> int:
    """Where the first record that is not before `time` starts; the file is nearly in order of time."""
    low, high = 0, lines.seek(0, 2)
    while high - low > 4096:
        middle = (low + high) // 2
        if (found := _time_after(lines, middle, high)) is not None and found < time:
            low = middle
        else:
            high = middle
    start = low
    lines.seek(low)
    if low:
        start += len(lines.readline())
    while start < high and (line := lines.readline(1 << 20)):
        record = parse_record(line)
        if record is not None and record.time_ns / 1e9 >= time:
            return start
        start += len(line)
    return start


def _time_after(lines: BinaryIO, offset: int, end: int) -> float | None:
    """The time of the first whole record after `offset`; None where there is none before `end`."""
    lines.seek(offset)
    lines.readline(1 << 20)
    while lines.tell() < end and (line := lines.readline(1 << 20)):
        record = parse_record(line)
        if record is not None:
            return record.time_ns / 1e9
    return None
