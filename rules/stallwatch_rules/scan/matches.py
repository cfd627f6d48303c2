"""Find the matches of rules in a log of any size. A match has a rule, a line, captures, and a time.

``stallwatch matches`` uses this module to find, count, and chart matches in gigabytes of logs. A diagnosis
uses the module ``sources`` instead, which reads more lines of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stallwatch_rules.lines.line_prefix import LinePrefix
from stallwatch_rules.lines.long_lines import HEAD, TAIL
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.matching.literal_index import literal_index
from stallwatch_rules.pages.catalogue import scanned_patterns, scanned_rules
from stallwatch_rules.records import Line
from stallwatch_rules.scan.chunks import Chunk, ChunkCutter
from stallwatch_rules.scan.segments import Segments
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.redact import redact, redact_part

if TYPE_CHECKING:
    from stallwatch_rules.matching.matcher import Matcher

CHUNK = 256 * 1024  #: size of a chunk in bytes; such a chunk fits into the cache of the processor
_BACK = 8  # number of preceding segments to search for a time if a line has no time
_BEFORE = 2048  # maximum number of preceding bytes to search for a time
_AT_ONCE = 128  # number of segments that are read together
_CLOCK = lazy(rb"\d\d:\d\d:\d\d|:\s?[\"']?\d{10}")  # every line with a time contains this pattern


class Match(NamedTuple):
    """A match of a rule in one line of a log."""

    rule: str
    #: The line. If the line has no time, it gets the time of a line shortly before it, or the last known
    #: time.
    line: Line
    captures: dict[str, str]

    def masked(self) -> Match:
        """Return a copy of the match in which the secrets in the line are masked."""
        clean = redact(self.line.text)
        if clean == self.line.text:
            return self
        captures = {name: redact_part(value, clean) for name, value in self.captures.items()}
        return Match(self.rule, msgspec.structs.replace(self.line, text=clean), captures)

    def bucket(self, seconds: float) -> float | None:
        """Return the start of the period of `seconds` seconds that contains the match.

        Return ``None`` if the time of the match is unknown.
        """
        return None if self.line.time is None else self.line.time // seconds * seconds


class MatchPatterns:
    """The compiled patterns of all rules. Several scans can share these patterns. Hyperscan is required."""

    def __init__(self, matcher: Matcher) -> None:
        pages = matcher.catalogue.pages.values()
        self.matcher = matcher
        self.index = literal_index(scanned_patterns(pages), matcher.catalogue.store)
        fires = [
            fires
            for page in scanned_rules(pages)
            for fires in (*[True] * len(page.patterns), *[False] * len(page.requires))
        ]
        #: For each literal of the index, the indexes of the patterns that contain the literal. The patterns
        #: of ``requires`` are omitted, because they can match one in ten lines.
        self.owners = tuple(frozenset(filter(fires.__getitem__, found)) for found in self.index.owners)


class _Waiting(NamedTuple):
    """A segment that can contain a match and that is parsed later."""

    raw: bytes
    number: int  #: line number of the segment
    before: bytes  #: the bytes that precede the segment
    patterns: set[int]  #: indexes of the patterns that can match in the segment


class MatchScan:
    """A scan of one source for matches of rules.

    `lead` is the prefix of all lines. `rank` is the rank of the lines that do not contain a rank.
    """

    def __init__(
        self,
        patterns: MatchPatterns,
        source: str = "",
        rank: int | None = None,
        lead: LinePrefix | None = None,
    ) -> None:
        self._patterns = patterns
        self._reader = LineReader(source, rank, lead=lead)
        self._cutter = ChunkCutter(CHUNK)
        self._before = b""  # the last bytes of the previous chunks
        self._begun: _Waiting | None = None  # the beginning of a line whose end has not been received yet

        #: Segments that are read together. The search of a chunk fills the caches of the processor with other
        #: data. Therefore, reading the lines one at a time takes four times as long per line.
        self.waiting: list[_Waiting] = []
        self._time: float | None = None
        self.lines = 0  #: number of line ends that have been found so far

    def feed(self, data: bytes) -> Iterator[Match]:
        """Read more bytes and yield matches. A later call can yield some of the matches in `data`."""
        for chunk in self._cutter.feed(data):
            self._search(chunk)
            if len(self.waiting) >= _AT_ONCE:
                yield from self._read_waiting()

    def finish(self) -> Iterator[Match]:
        """Yield the remaining matches. Call this method at the end of the source."""
        for chunk in self._cutter.finish():
            self._search(chunk, is_last=True)
        if self._begun is not None and self._begun.patterns:
            self.waiting.append(self._begun)
        yield from self._read_waiting()

    def _search(self, chunk: Chunk, *, is_last: bool = False) -> None:
        """Search a chunk for segments that can contain a match. These segments are parsed later."""
        begun, self._begun = self._begun, None  # the beginning of a line, from a previous chunk
        if begun is not None and not chunk.torn:  # null bytes ended the line
            self.waiting += [begun] if begun.patterns else []
            begun = None
        segments = Segments(chunk.data)
        data = segments.data
        if not data:  # the chunk contains only null bytes
            self._begun = begun
            return
        found = self._found(segments)
        if begun is not None and begun.patterns:
            found = {0: set(), **found}
        last = segments.count - 1
        is_open = not is_last and data[-1:] not in (b"\n", b"\r")  # the line continues in the next chunk
        if is_open:
            found.setdefault(last, set())
        for unit, patterns in found.items():
            start, end = segments.place(unit)
            raw, number = segments.record_head(unit) + data[start:end], self.lines + 1
            hit = _Waiting(
                raw, number + segments.line_ends(0, unit), self._seen_before(data, start), patterns
            )
            if begun is not None and not unit:  # only the beginning and the end of an overlong line are read
                rest = b"" if is_open and unit == last else raw[-TAIL:]
                hit = begun._replace(raw=begun.raw + rest, patterns=begun.patterns | patterns)
            if is_open and unit == last:
                self._begun = hit._replace(raw=hit.raw[:HEAD])
            else:
                self.waiting.append(hit)
        self.lines += segments.line_ends(0, segments.count)
        self._before = (self._before + data[-_BEFORE:])[-_BEFORE:]

    def _seen_before(self, data: bytes, start: int) -> bytes:
        """Return the bytes before a segment. These bytes can be part of the previous chunk."""
        before = data[max(0, start - _BEFORE) : start]
        return before if len(before) == _BEFORE else (self._before + before)[-_BEFORE:]

    def _found(self, segments: Segments) -> dict[int, set[int]]:
        """Map the segments in which patterns can match to the indexes of these patterns."""
        owners, found = self._patterns.owners, dict[int, set[int]]()
        numbers, ends = self._patterns.index.hits(segments.view)
        hits = [(owners[number], end) for number, end in zip(numbers, ends, strict=True) if owners[number]]
        for (patterns, _), unit in zip(hits, segments.at([end for _, end in hits]), strict=True):
            found.setdefault(unit, set()).update(patterns)
        return found

    def _read_waiting(self) -> Iterator[Match]:
        waiting, self.waiting = self.waiting, []
        for hit in waiting:
            lines = self._read(hit.raw, hit.number)
            for index, rule, captures in self._patterns.matcher.confirm(lines, hit.patterns):
                line = lines[index]
                if line.time is None:
                    self._time = self._time_in(hit.before) or self._time
                    line = lines[index] = msgspec.structs.replace(line, time=self._time)
                self._time = line.time
                yield Match(rule, line, captures)

    def _read(self, raw: bytes, number: int = 1) -> list[Line]:
        reader = self._reader.alone(self._time, number)
        return reader.feed(raw + b"\n") + reader.finish()

    def _time_in(self, before: bytes) -> float | None:
        """Return the last time in the bytes before a segment.

        These bytes can begin in the middle of a line.
        """
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
