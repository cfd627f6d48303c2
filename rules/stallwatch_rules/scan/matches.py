"""Where rules fire in a log of any size: rule, line, captures and time, and nothing else read.

For finding, counting and charting matches in gigabytes, as ``stallwatch matches`` does. A diagnosis needs
more than that (``sources``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stallwatch_rules.lines.leads import Lead
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.lines.wrapped import HEAD, TAIL
from stallwatch_rules.matching.literal_index import literal_index
from stallwatch_rules.pages.catalogue import scanned_patterns, scanned_rules
from stallwatch_rules.records import Line
from stallwatch_rules.scan.chunks import Chunk, ChunkCutter
from stallwatch_rules.scan.segments import Segments, count_byte, is_solid, record_head, view_of
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    from stallwatch_rules.matching.matcher import Matcher

CHUNK = 256 * 1024  #: bytes: a processor's cache holds them until all is done with them
_BACK = 8  # segments before a line that are asked for the time, if the line has none
_BEFORE = 2048  # bytes of them
_AT_ONCE = 128  # segments that wait until they are read
_CLOCK = lazy(rb"\d\d:\d\d:\d\d")  # without it a line tells no time


class Match(NamedTuple):
    """A place where a rule fired."""

    rule: str
    line: Line  #: its time is its own, else that of a line shortly before it, else the last one known
    captures: dict[str, str]

    def bucket(self, seconds: float) -> float | None:
        """The beginning of the period in which it fired."""
        return None if self.line.time is None else self.line.time // seconds * seconds


class MatchPatterns:
    """A matcher's patterns, compiled for any number of scans. Needs hyperscan."""

    def __init__(self, matcher: Matcher) -> None:
        pages = matcher.catalogue.pages.values()
        self.matcher = matcher
        self.index = literal_index(scanned_patterns(pages), matcher.catalogue.store)
        fires = [
            fires
            for page in scanned_rules(pages)
            for fires in (*[True] * len(page.patterns), *[False] * len(page.requires))
        ]
        #: what each number that the index finds stands for, without what a rule only requires of other lines,
        #: which may stand on every tenth line
        self.owners = tuple(frozenset(one for one in found if fires[one]) for found in self.index.owners)


class _Waiting(NamedTuple):
    """A segment in which something was found, until it is read."""

    raw: bytes
    number: int  #: of its line
    before: bytes  #: what stands before it
    patterns: set[int]  #: that may match there


class MatchScan:
    """Scans one source; its lines are those of ``rank``, if none names another, behind a ``lead``."""

    def __init__(
        self, patterns: MatchPatterns, source: str = "", rank: int | None = None, lead: Lead | None = None
    ) -> None:
        self._patterns = patterns
        self._reader = LineReader(source, rank, lead=lead)
        self._cutter = ChunkCutter(CHUNK)
        self._before = b""  # the end of the chunks before this one
        self._begun: _Waiting | None = None  # the beginning of a line that has not ended
        #: Segments are read many at a time: after a chunk was looked through, a processor's caches hold
        #: nothing that reading needs, and a single line would take it four times as long.
        self.waiting: list[_Waiting] = []
        self._time: float | None = None
        self.lines = 0  #: line ends so far

    def feed(self, data: bytes) -> Iterator[Match]:
        """The next matches; those in ``data`` may come with a later portion."""
        for chunk in self._cutter.feed(data):
            self._search(chunk)
            if len(self.waiting) >= _AT_ONCE:
                yield from self._read_waiting()

    def finish(self) -> Iterator[Match]:
        """The matches that are left."""
        for chunk in self._cutter.finish():
            self._search(chunk, is_last=True)
        if self._begun is not None and self._begun.patterns:
            self.waiting.append(self._begun)
        yield from self._read_waiting()

    def _search(self, chunk: Chunk, *, is_last: bool = False) -> None:
        """Find the segments to read."""
        data = chunk.data
        solid = is_solid(data)
        if not solid:
            data = data.replace(b"\0", b"")
        counted = 0
        begun, self._begun = self._begun, None  # a line that began in a chunk before this one
        if begun is not None and not chunk.torn:  # a hole ended it
            self.waiting += [begun] if begun.patterns else []
            begun = None
        open_at = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if is_last:
            open_at = len(data)
        found = self._found(data, solid)
        if begun is not None and begun.patterns and not any(start == 0 for start, _ in found):
            end = min((at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0), default=len(data))
            found = {(0, end): set(), **found}
        for (start, end), patterns in found.items():
            self.lines += count_byte(data, b"\n", counted, start)
            counted = start
            if start == open_at < len(data):
                break  # it goes on in the next chunk
            raw, number, before = data[start:end], self.lines + 1, self._seen_before(data, start)
            raw = record_head(data, start) + raw
            if begun is not None and not start:  # of too long a line, the beginning and the end are read
                raw, number, before = begun.raw + raw[-TAIL:], begun.number, begun.before
                patterns = begun.patterns | patterns
            self.waiting.append(_Waiting(raw, number, before, patterns))
        self.lines += count_byte(data, b"\n", counted, len(data))
        if open_at < len(data):
            patterns = next((one for (start, _), one in found.items() if start == open_at), set())
            if begun is not None and not open_at:
                self._begun = begun._replace(patterns=begun.patterns | patterns)
            else:
                raw = (record_head(data, open_at) + data[open_at:])[:HEAD]
                self._begun = _Waiting(raw, self.lines + 1, self._seen_before(data, open_at), patterns)
        self._before = (self._before + data[-_BEFORE:])[-_BEFORE:]

    def _seen_before(self, data: bytes, start: int) -> bytes:
        """Return what stands before a segment, some of it in the chunk before this one."""
        before = data[max(0, start - _BEFORE) : start]
        return before if len(before) == _BEFORE else (self._before + before)[-_BEFORE:]

    def _found(self, data: bytes, solid: bool) -> dict[tuple[int, int], set[int]]:
        """The segments in which patterns may match: where they begin and end, and which patterns."""
        view, owners = view_of(data, solid=solid), self._patterns.owners
        numbers, ends = self._patterns.index.hits(view)
        hits = [(owners[number], end) for number, end in zip(numbers, ends, strict=True) if owners[number]]
        found: dict[tuple[int, int], set[int]] = {}
        segments = None if view is data else Segments(data)
        stop = -1
        for patterns, end in hits:
            if segments is not None:
                place = segments.place(segments.at([end])[0])
            elif end - 1 > stop:  # by the bytes around it: to look up all line ends takes longer
                start = data.rfind(b"\n", 0, end - 1) + 1
                start = max(start, data.rfind(b"\r", start, end - 1) + 1)
                stop = data.find(b"\n", end - 1)
                stop = stop if stop >= 0 else len(data)
                back = data.find(b"\r", end - 1, stop)
                stop = back if back >= 0 else stop
                place = start, stop
            found.setdefault(place, set()).update(patterns)
        return found

    def _read_waiting(self) -> Iterator[Match]:
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            lines = self._read(one.raw, one.number)
            for index, rule, captures in self._patterns.matcher.confirm(lines, one.patterns):
                line = lines[index]
                if line.time is None:
                    self._time = self._time_in(one.before) or self._time
                    line = lines[index] = msgspec.structs.replace(line, time=self._time)
                self._time = line.time
                yield Match(rule, line, captures)

    def _read(self, raw: bytes, number: int = 1) -> list[Line]:
        reader = self._reader.alone(self._time, number)
        return reader.feed(raw + b"\n") + reader.finish()

    def _time_in(self, before: bytes) -> float | None:
        """What the last of these segments says that tells a time; the first may be there in part only."""
        stop = len(before)
        for _ in range(_BACK):
            stop -= 1
            start = max(before.rfind(b"\n", 0, max(0, stop)), before.rfind(b"\r", 0, max(0, stop))) + 1
            if _CLOCK.search(before, start, stop):
                times = [line.time for line in self._read(before[start:stop]) if line.time is not None]
                if times:
                    return times[-1]
            stop = start
        return None
