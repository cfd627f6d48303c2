"""One large file read by several processes: its stretches are sieved at once, and read in their order.

What a sieve lets through of a stretch depends on nothing before it (``sieve/state``), so another process can
find it. This process reads the beginning, the end and what the sieves let through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from pathlib import Path
from typing import NamedTuple

from stallwatch_logs.file_reading import Engines, FileRead, Within
from stallwatch_logs.heads import broken_at
from stallwatch_logs.line_format import lead_of
from stallwatch_logs.log_files import LogFile
from stallwatch_logs.portions import cells, edge, is_sparse
from stallwatch_rules.lines.leads import Lead
from stallwatch_rules.lines.reader import MAX_LINE, LineReader
from stallwatch_rules.matching.cells import CellCutter
from stallwatch_rules.reading import RunReading
from stallwatch_rules.sieve.sieve import Left, Piece, Sieve, SieveEngine
from stallwatch_rules.sieve.sourcereading import UTF16_MARKS, SourceReading
from stallwatch_rules.sieve.state import SieveSizes

_EVERY = 0.1  # seconds between two looks at those who sieve


class Range(NamedTuple):
    """Whole stretches of a file, in cells."""

    path: str
    first: int
    behind: int
    lead: Lead | None = None  #: before its lines


class Sifted(NamedTuple):
    """What a sieve let through of a range, cell by cell, and where the range ends."""

    cells: list[list[Left | Piece]]
    size: int  #: bytes of the range
    end: int
    torn: bool  #: it ends inside of a line that is longer than a line may be


def ranges_of(file: LogFile, sizes: SieveSizes) -> list[Range]:
    """The stretches of a file that others may sieve: all but the first and those that reach into its end."""
    stretch = sizes.cell * sizes.stretch_cells
    if not file.plain or file.size < 2 * stretch or is_sparse(file.path):
        return []
    behind = (file.size - 2 * sizes.tail - MAX_LINE) // stretch
    count = sizes.stretch_cells
    return [Range(file.path, number * count, (number + 1) * count) for number in range(1, behind)]


def sift_range(wanted: Range, engine: SieveEngine, sizes: SieveSizes, within: Within) -> Sifted:
    """Sieve a range; ``within`` is called with the bytes of it read so far."""
    sieve = Sieve(engine, sizes, wanted.lead)
    with Path(wanted.path).open("rb") as raw:
        start, torn = edge(raw.fileno(), wanted.first * sizes.cell)
        end, torn_behind = edge(raw.fileno(), wanted.behind * sizes.cell)
        cutter, read = CellCutter(sizes.cell, start, torn=torn), 0
        found = []
        for portion in cells(raw.fileno(), start, end, sizes.cell):
            found += [
                sieve.sift(looked) for looked in map(sieve.look_through, cutter.feed(portion)) if looked
            ]
            read += len(portion)
            within(read)
        found += [sieve.sift(looked) for looked in map(sieve.look_through, cutter.finish()) if looked]
    return Sifted(found, end - start, end, torn_behind)


class RangeReading:
    """Reads one file with the help of an executor, to which ``window`` ranges are handed at a time.

    ``sift`` is what the executor calls with a range. What it fails to do is done here.
    """

    def __init__(
        self,
        executor: Executor,
        window: int,
        sift: Callable[[Range], Sifted],
        engines: Engines,
        within: Within,
    ) -> None:
        self._executor: Executor | None = executor  # none any more once it is broken
        self._window = window
        self._sift = sift
        self._engines = engines
        self._within = within
        self._waiting: deque[Range] = deque()
        self._running: dict[Future[Sifted], Range] = {}
        self._sifted: dict[Range, Sifted] = {}

    def read(self, file: LogFile, reading: RunReading, sizes: SieveSizes | None = None) -> FileRead | None:
        """Read a file into a reading; ``None`` where it has no ranges, or is to be read whole."""
        sizes = sizes if sizes is not None else SieveSizes()
        engine, ranges = self._engines.sieve(), ranges_of(file, sizes)
        if not ranges or engine is None:
            return None
        read = FileRead(None)
        head = next(file.chunks(read.problems, read.binary), b"")
        lead = lead_of(head)
        if not head or head[:2] in UTF16_MARKS or (lead is not None and lead.quoted):
            return None
        ranges = [one._replace(lead=lead) for one in ranges]
        lines = LineReader(file.name, file.rank, broken_at(head), lead=lead).look_ahead(head)
        source = SourceReading(reading, lines, lambda: engine, sizes)
        self._waiting.extend(ranges)
        with Path(file.path).open("rb") as raw:
            begun = edge(raw.fileno(), ranges[0].first * sizes.cell)[0]
            for portion in cells(raw.fileno(), 0, begun, sizes.cell):
                self._feed(source, portion)
            for one in ranges:
                sifted = self._sifted_of(one, engine, sizes, source.bytes)
                source.pass_over(sifted.cells, sifted.size, sifted.torn)
                self._within(source.bytes)
            for portion in cells(raw.fileno(), source.bytes, None, sizes.cell):
                self._feed(source, portion)
        source.finish()
        read.bytes, read.lines, read.cut = source.bytes, source.lines, source.cut
        return read

    def _feed(self, source: SourceReading, portion: bytes) -> None:
        source.feed(portion)
        self._within(source.bytes)
        self._hand_out()

    def _sifted_of(self, wanted: Range, engine: SieveEngine, sizes: SieveSizes, before: int) -> Sifted:
        """What was let through of a range; while others are busy with it, the next one is sieved here."""

        def within(read: int) -> None:
            self._within(before + read)
            self._hand_out()

        self._hand_out()
        while wanted not in self._sifted:
            if self._waiting and (wanted == self._waiting[0] or len(self._sifted) < self._window):
                one = self._waiting.popleft()
                self._sifted[one] = sift_range(one, engine, sizes, within)
            else:
                wait(self._running, timeout=_EVERY, return_when=FIRST_COMPLETED)
                self._within(before)
            self._hand_out()
        return self._sifted.pop(wanted)

    def _hand_out(self) -> None:
        """Take what others have sieved, and hand further ranges to them."""
        for future in [future for future in self._running if future.done()]:
            one, error = self._running.pop(future), future.exception()
            if error is None:
                self._sifted[one] = future.result()
                continue
            if isinstance(error, BrokenExecutor):
                self._executor = None
            self._waiting.appendleft(one)
        while self._executor is not None and self._waiting and len(self._running) < self._window:
            try:
                future = self._executor.submit(self._sift, self._waiting[0])
            except (BrokenExecutor, OSError):  # its processes died, or none can be started
                self._executor = None
                return
            self._running[future] = self._waiting.popleft()
