"""Read a run's log copies: their last lines, and the lines around a given time."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path
from typing import BinaryIO

from stallwatch_exporter.runs.copies import parse_record
from stallwatch_rules.files import open_regular
from stallwatch_rules.lines.ranks import rank_of_path
from stallwatch_rules.text.controls import TERMINAL_CODES, without_controls
from stallwatch_rules.text.digest import fold_ranks
from stallwatch_rules.text.redact import redact

MOST_BYTES = 512 * 1024  #: maximum bytes read from one copy, half before and half after a given time
MOST_COPIES = 128  #: maximum number of ranks whose copies are read for one view
MOST_LINES = 2000  #: maximum number of lines of one view
_END_BYTES = 256 * 1024  #: number of bytes read from the end of one copy
_MOST_CHARACTERS = 2000  #: maximum number of characters of one line
_FOLD_SECONDS = 1.0  #: equal lines of several ranks within this many seconds are shown as one line
_NUMBERS = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class LogCopy:
    path: Path
    rank: int | None  #: None for lines of unknown rank
    host: str = ""  #: set if the run has several hosts

    @property
    def stamp(self) -> tuple[str, int, int]:
        """The path, size, and modification time in nanoseconds. For a missing file, the numbers are 0."""
        try:
            stat = self.path.stat()
        except OSError:
            return (str(self.path), 0, 0)
        return (str(self.path), stat.st_size, stat.st_mtime_ns)


def copies(*folders: Path, hosts: Sequence[str] = ()) -> list[LogCopy]:
    """Return the log copies of a run, ordered by rank. Copies without a known rank come last.

    For a run on several hosts, `hosts` contains the host of each folder.
    """
    ranks, rest = list[LogCopy](), list[LogCopy]()
    for folder, host in zip(folders, hosts or [""] * len(folders), strict=True):
        ranks += [LogCopy(path, rank_of_path(path.name), host) for path in (folder / "ranks").glob("*.log")]
        if (folder / "output.log").is_file():
            rest.append(LogCopy(folder / "output.log", None, host))
    return sorted(ranks, key=lambda copy: (copy.rank is None, copy.rank or 0, copy.path.name)) + rest


def _end_of(path: Path) -> bytes:
    """Return the complete lines at the end of a file, as bytes. If the file cannot be read, return b""."""
    try:
        with open_regular(path) as copy:
            size = copy.seek(0, 2)
            copy.seek(max(0, size - _END_BYTES))
            end = copy.read(_END_BYTES)
    except OSError:
        return b""
    return end if size <= _END_BYTES else end.partition(b"\n")[2]


def tail(path: Path, lines: int = 200, zone: tzinfo | None = None) -> str:
    """Return the last lines of one copy, each with its time of day. Secrets are masked."""
    shown = [
        f"{datetime.fromtimestamp(last, zone):%H:%M:%S}  {text}" if whole else f"{'…':>8}  {text}"
        for _, last, whole, text in _assembled(_end_of(path))
    ]
    return "\n".join(shown[-lines:])


def _assembled(raw: bytes, until: float = math.inf) -> Iterator[tuple[float, float, bool, str]]:
    """Join records into lines. Yield each line's first and last time, completeness, and text."""
    begun, first, last = b"", None, 0.0
    for piece in raw.split(b"\n"):
        record = parse_record(piece)
        if record is None:
            continue
        time = record.time_ns / 1e9
        if time > until:
            break
        begun, first, last = begun + record.text, time if first is None else first, time
        if record.full:
            if text := as_drawn(begun):
                yield first, last, True, text
            begun, first = b"", None
    if first is not None and (text := as_drawn(begun)):
        yield first, last, False, text


def as_drawn(raw: bytes) -> str:
    """Return a line as a terminal shows it after all carriage returns. Secrets are masked."""
    text = raw.decode("utf-8", "replace").rstrip("\r").rsplit("\r", 1)[-1]
    return redact(without_controls(TERMINAL_CODES.sub("", text))[:_MOST_CHARACTERS].rstrip())


@dataclass(frozen=True)
class Line:
    """A log line as a terminal finally shows it, with secrets masked."""

    time: float
    ranks: tuple[int | None, ...]  #: for a folded line, all ranks that printed it
    text: str


def lines_around(copies: Sequence[LogCopy], at: float, seconds: float, most: int = MOST_BYTES) -> list[Line]:
    """Return the lines from `at - seconds` to `at + seconds`, in order of time.

    At most `MOST_COPIES` copies are read, and at most `most` bytes of each, near the time `at`.
    """
    found: list[Line] = []
    for copy in copies[:MOST_COPIES]:
        try:
            with open_regular(copy.path) as lines:
                lines.seek(max(_offset(lines, at - seconds), _offset(lines, at) - most // 2))
                whole = lines.read(most).rpartition(b"\n")[0]
        except OSError:
            continue
        found += [Line(first, (copy.rank,), text) for first, _, _, text in _assembled(whole, at + seconds)]
    return sorted(found, key=lambda line: line.time)


def matching(lines: Iterable[Line], search: str) -> list[Line]:
    """Return the lines that contain all words in `search`. Case is ignored."""
    words = search.casefold().split()
    return [line for line in lines if all(word in line.text.casefold() for word in words)]


def fold(lines: Sequence[Line]) -> list[Line]:
    """Join lines of different ranks that differ only in numbers and are close in time.

    Each joined line shows the text of the first line.
    """
    found: list[Line] = []
    latest: dict[str, int] = {}
    for line in lines:
        key = _NUMBERS.sub("0", line.text)
        index = latest.get(key)
        if index is not None:
            other = found[index]
            if line.time - other.time <= _FOLD_SECONDS and line.ranks[0] not in other.ranks:
                found[index] = Line(other.time, (*other.ranks, *line.ranks), other.text)
                continue
        latest[key] = len(found)
        found.append(line)
    return found


def drawn(lines: Sequence[Line], at: float, zone: tzinfo | None, unknown: str) -> str:
    """Return the lines as text, each with its time and ranks. A mark shows the position of the time `at`.

    If there are too many lines, return the lines nearest to `at`.
    """
    before = sum(line.time < at for line in lines)
    first = max(0, min(before - MOST_LINES // 2, len(lines) - MOST_LINES))
    texts = []
    for number, line in enumerate(lines[first : first + MOST_LINES], first):
        known = [rank for rank in line.ranks if rank is not None]
        ranks = fold_ranks(known) if known else unknown
        mark = "▶" if number == before else " "
        clock = f"{datetime.fromtimestamp(line.time, zone):%H:%M:%S.%f}"[:-3]
        texts.append(f"{mark} {clock}  {ranks:>7}  {line.text}")
    return "\n".join(texts)


def _offset(lines: BinaryIO, time: float) -> int:
    """Return the byte offset of the first record whose time is `time` or later.

    The search is binary, because the records are nearly in order of time.
    """
    blocks = range(0, lines.seek(0, 2), 4096)
    later = bisect_left(blocks, time, key=lambda block: _time_after(lines, block))
    start = blocks[later - 1] if later else 0
    lines.seek(start)
    if start:
        start += len(lines.readline())
    while line := lines.readline(1 << 20):
        record = parse_record(line)
        if record is not None and record.time_ns / 1e9 >= time:
            break
        start += len(line)
    return start


def _time_after(lines: BinaryIO, offset: int) -> float:
    """Return the time of the first record that begins after `offset`, or infinity if there is none."""
    lines.seek(offset)
    lines.readline(1 << 20)
    while line := lines.readline(1 << 20):
        if (record := parse_record(line)) is not None:
            return record.time_ns / 1e9
    return math.inf
