"""Where rules fire in a log of any size: rule, line number, captures and time, and nothing else read.

For counting and charting signatures over gigabytes. A diagnosis needs more than that (``sourcereading``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stallwatch_rules.catalogue import scanned_patterns
from stallwatch_rules.cells import Cell, CellCutter
from stallwatch_rules.lines import LineReader
from stallwatch_rules.rawpatterns import raw_form
from stallwatch_rules.rawview import view_of
from stallwatch_rules.records import Line
from stallwatch_rules.segments import Segments
from stallwatch_rules.signscan import SignScanner

if TYPE_CHECKING:
    from stallwatch_rules.matcher import Matcher

CELL = 512 * 1024
_BACK = 8  #: segments before a line that are asked for the time, where the line has none


class Signature(NamedTuple):
    """A rule that fired."""

    rule: str
    line: int
    captures: dict[str, str]
    time: float | None  #: the line's own, else that of a line shortly before it, else the last one known

    def bucket(self, seconds: float) -> float | None:
        """The beginning of the stretch of time in which it fired."""
        return None if self.time is None else self.time // seconds * seconds


class SignatureScan:
    """Scans one source. Needs hyperscan and numpy (``blockscan.available``)."""

    def __init__(self, matcher: Matcher) -> None:
        patterns = scanned_patterns(matcher.catalogue.pages.values())
        store = matcher.catalogue.store
        self._matcher = matcher
        self._scanner = SignScanner([raw_form(pattern) for pattern in patterns], store, patterns)
        self._cutter = CellCutter(CELL)
        self._time: float | None = None
        self.lines = 0  #: line ends so far

    def feed(self, data: bytes) -> Iterator[Signature]:
        """The signatures in what ``data`` completes."""
        for cell in self._cutter.feed(data):
            yield from self._in_cell(cell)

    def finish(self) -> Iterator[Signature]:
        """Those in what is left."""
        for cell in self._cutter.finish():
            yield from self._in_cell(cell)

    def _in_cell(self, cell: Cell) -> Iterator[Signature]:
        import numpy as np

        data = cell.data.replace(b"\0", b"") if b"\0" in cell.data else cell.data
        view = view_of(data)
        if view:
            segments = Segments(data, view)
            units = np.unique(self._scanner.find(view, segments).units).tolist()
            yield from self._on_segments(segments, [unit for unit in units if unit or not cell.torn])
        self.lines += int(np.count_nonzero(np.frombuffer(data, np.uint8) == 10))

    def _on_segments(self, segments: Segments, units: Sequence[int]) -> Iterator[Signature]:
        lines: list[Line] = []
        owners: list[int] = []
        for unit in units:
            reader = LineReader("")
            read = reader.feed(segments.record_head(unit) + segments.raw(unit, unit + 1)) + reader.finish()
            lines += read
            owners += [unit] * len(read)
        for index, rule, captures in self._matcher.match(lines):
            if lines[index].time is None:
                self._time = self._time_before(segments, owners[index]) or self._time
            else:
                self._time = lines[index].time
            number = self.lines + segments.line_ends(0, owners[index]) + 1
            yield Signature(rule, number, captures, self._time)

    def _time_before(self, segments: Segments, unit: int) -> float | None:
        first = max(0, unit - _BACK)
        reader = LineReader("")
        times = [line.time for line in reader.feed(segments.raw(first, unit)) if line.time is not None]
        return times[-1] if times else None
