"""Where rules fire in a log of any size: rule, line, captures and time, and nothing else read.

For finding, counting and charting signatures in gigabytes, as ``stallwatch matches`` does. A diagnosis needs
more than that (``sourcereading``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stallwatch_rules.lines.leads import Lead
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.matching.lineblocks import PORTION, LineBlocks
from stallwatch_rules.matching.rawview import is_plain, view_of
from stallwatch_rules.matching.segments import Segments, record_head
from stallwatch_rules.matching.textindex import rules_index
from stallwatch_rules.pages.catalogue import scanned_patterns, scanned_rules
from stallwatch_rules.records import Line
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stallwatch_rules.matching.matcher import Matcher
    from stallwatch_rules.pages.page import RulePage

_BACK = 8  #: segments before a line that are asked for the time, where the line has none
_BEFORE = 2048  #: bytes of them
_AT_ONCE = 128  #: segments that wait until they are read
_FEW = 8192  #: bytes that Python looks through sooner than numpy
_CLOCK = lazy(rb"\d\d:\d\d:\d\d")  # without it a line tells no time


class Signature(NamedTuple):
    """A rule that fired."""

    rule: str
    line: Line  #: its time is its own, else that of a line shortly before it, else the last one known
    captures: dict[str, str]

    def bucket(self, seconds: float) -> float | None:
        """The beginning of the stretch of time in which it fired."""
        return None if self.line.time is None else self.line.time // seconds * seconds


class SignatureRules:
    """A matcher's patterns, compiled for any number of scans. Needs hyperscan (``blockscan.available``)."""

    def __init__(self, matcher: Matcher) -> None:
        pages = matcher.catalogue.pages.values()
        self.matcher = matcher
        self.index = rules_index(scanned_patterns(pages), matcher.catalogue.store)
        fires = [fires for page in scanned_rules(pages) for fires in _fires(page)]
        #: what each number that the index finds stands for, without what a rule only requires of other lines,
        #: which may stand on every tenth line
        self.owners = tuple(frozenset(one for one in found if fires[one]) for found in self.index.owners)


def _fires(page: RulePage) -> list[bool]:
    """Of a page's scanned patterns, whether a match of it is the rule's."""
    return [True] * len(page.patterns) + [False] * len(page.requires)


class _Span(NamedTuple):
    """A segment in which something was found."""

    start: int
    end: int
    patterns: set[int]  #: that may match there


class _Waiting(NamedTuple):
    """The same until it is read."""

    raw: bytes
    number: int  #: of its line
    before: bytes  #: what stands before it
    patterns: set[int]


class SignatureScan:
    """Scans one source; its lines are those of ``rank``, where none names another, behind a ``lead``."""

    def __init__(
        self, rules: SignatureRules, source: str = "", rank: int | None = None, lead: Lead | None = None
    ) -> None:
        self._rules = rules
        self._reader = LineReader(source, rank, lead=lead)
        self._blocks = LineBlocks()
        self._before = b""  # the end of the blocks before this one
        # Segments are read many at a time: after a block was looked through, a processor's caches hold
        # nothing that reading needs, and a single line would take it four times as long.
        self._waiting: list[_Waiting] = []
        self._time: float | None = None
        self._is_feed: NDArray[np.bool_] | None = None  # what tells line feeds, kept for the next block
        self.lines = 0  #: line ends so far

    @property
    def waiting(self) -> int:
        """Segments that were found and are still to be read."""
        return len(self._waiting)

    def feed(self, data: bytes) -> Iterator[Signature]:
        """The next signatures; those in ``data`` may come with a later portion."""
        for at in range(0, len(data), PORTION):
            portion = data[at : at + PORTION] if len(data) > PORTION else data
            self.room()[: len(portion)] = portion
            yield from self.filled(len(portion))

    def room(self) -> memoryview:
        """Where the source's next bytes may be put, so that they need not be copied; then call ``filled``."""
        return self._blocks.room()

    def filled(self, count: int) -> Iterator[Signature]:
        """As ``feed``, for so many bytes that were put into the ``room``."""
        self._look_through(*self._blocks.filled(count))
        if len(self._waiting) >= _AT_ONCE:
            yield from self._read_waiting()

    def finish(self) -> Iterator[Signature]:
        """The signatures that are left."""
        self._look_through(*self._blocks.finish())
        yield from self._read_waiting()

    def _look_through(self, data: bytes | bytearray, end: int) -> None:
        """Find the segments to read in the first bytes of ``data``."""
        if is_plain(data, end):
            numbers, ends = self._rules.index.hits(memoryview(data)[:end])
            spans = self._spans(data, end, zip(numbers, ends, strict=True)) if numbers else []
        else:
            data = bytes(memoryview(data)[:end]).replace(b"\0", b"")
            end = len(data)
            spans = self._spans_in_view(data)
        counted = 0
        for start, stop, patterns in spans:
            self.lines += self._feeds(data, counted, start)
            counted = start
            raw = record_head(data, start) + bytes(data[start:stop])
            self._waiting.append(_Waiting(raw, self.lines + 1, self._bytes_before(data, start), patterns))
        self.lines += self._feeds(data, counted, end)
        self._before = self._bytes_before(data, end)

    def _feeds(self, data: bytes | bytearray, start: int, end: int) -> int:
        """How many line feeds stand between two offsets."""
        if end - start < _FEW:
            return data.count(b"\n", start, end)
        import numpy as np

        if self._is_feed is None or len(self._is_feed) < end - start:
            self._is_feed = np.empty(end - start, bool)
        found = self._is_feed[: end - start]
        np.equal(np.frombuffer(data, np.uint8, end - start, start), 10, out=found)
        return int(np.count_nonzero(found))

    def _bytes_before(self, data: bytes | bytearray, start: int) -> bytes:
        if start >= _BEFORE:
            return bytes(data[start - _BEFORE : start])
        return (self._before + data[:start])[-_BEFORE:]

    def _spans(self, data: bytes | bytearray, limit: int, hits: Iterable[tuple[int, int]]) -> list[_Span]:
        """The segments in which those hits end."""
        spans: list[_Span] = []
        owners, stop = self._rules.owners, -1
        for number, end in hits:
            if not owners[number]:
                continue
            last = end - 1
            if last > stop:
                feed = data.rfind(b"\n", 0, last) + 1
                start = max(feed, data.rfind(b"\r", feed, last) + 1)
                feed = data.find(b"\n", last, limit)
                stop = limit if feed < 0 else feed
                back = data.find(b"\r", last, stop)
                stop = stop if back < 0 else back
                spans.append(_Span(start, stop, set(owners[number])))
            else:
                spans[-1].patterns.update(owners[number])
        return spans

    def _spans_in_view(self, data: bytes) -> list[_Span]:
        view = view_of(data)
        numbers, ends = self._rules.index.hits(view) if view else ([], [])
        if not numbers:
            return []
        if view is data:
            return self._spans(data, len(data), zip(numbers, ends, strict=True))
        segments, found = Segments(data, view), dict[int, set[int]]()
        for unit, number in zip(segments.at(ends).tolist(), numbers, strict=True):
            if self._rules.owners[number]:
                found.setdefault(unit, set()).update(self._rules.owners[number])
        return [_Span(*segments.place(unit), patterns) for unit, patterns in found.items()]

    def _read_waiting(self) -> Iterator[Signature]:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            lines = self._read(one.raw, one.number)
            for index, rule, captures in self._rules.matcher.confirm(lines, one.patterns):
                line = lines[index]
                if line.time is None:
                    self._time = self._time_in(one.before) or self._time
                    line = lines[index] = msgspec.structs.replace(line, time=self._time)
                self._time = line.time
                yield Signature(rule, line, captures)

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
