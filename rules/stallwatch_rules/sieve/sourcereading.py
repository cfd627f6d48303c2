"""Reads one source into a run's reading: its beginning and end whole, what lies between through a sieve."""

from __future__ import annotations

import codecs
import itertools
from collections import deque
from collections.abc import Callable, Iterable

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.lines.wrapped import TAIL
from stallwatch_rules.matching.cells import Cell, CellCutter, cell_end
from stallwatch_rules.reading import Aside, RunReading
from stallwatch_rules.records import Line
from stallwatch_rules.sieve.sieve import Left, Looked, Piece, Sieve, SieveEngine
from stallwatch_rules.sieve.state import SieveSizes

UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_TOGETHER = 8  #: cells that are sieved and read at once
_LONG_HEAD = 8  #: times the head's size at most, however few lines it holds


class SourceReading:
    """Takes the bytes of one source in portions.

    ``engine`` is asked for once the source is longer than its head and its tail; where it gives none, every
    line is read.
    """

    def __init__(
        self,
        reading: RunReading,
        lines: LineReader,
        engine: Callable[[], SieveEngine | None],
        sizes: SieveSizes | None = None,
    ) -> None:
        self._reading = reading
        self._lines = lines
        self._sizes = sizes if sizes is not None else SieveSizes()
        self._engine = engine
        self._sieve: Sieve | None = None
        self._sieving = True
        self._cutter = CellCutter(self._sizes.cell)
        self._waiting: deque[Cell] = deque()
        self._begun = b""
        self._decoder: codecs.IncrementalDecoder | None = None
        self._decided = False  # whether a byte order mark was looked for
        self._head = 0  # bytes of the head so far
        self._head_segments = 0
        self._in_head = True
        self._whole = True  # whether the last cell was read to its end
        self._looked: list[Looked] = []  # at cells that wait to be sieved
        self.bytes = 0

    @property
    def lines(self) -> int:
        """Lines that ended so far."""
        return self._lines.lines

    @property
    def cut(self) -> int:
        """Lines that were longer than what is kept of one."""
        return self._lines.cut

    def feed(self, data: bytes) -> None:
        """Take the next portion."""
        self.bytes += len(data)
        data = self._decoded(data)
        self._waiting.extend(self._cutter.feed(data))
        if not self._waiting:
            return
        behind = sum(len(cell.data) for cell in self._waiting) + self._cutter.held
        while self._waiting and (behind := behind - len(self._waiting[0].data)) >= self._sizes.tail:
            self._take(self._waiting.popleft())

    def pass_over(self, cells: Iterable[Iterable[Left | Piece]], size: int, torn: bool) -> None:
        """Take ``size`` bytes that another sieve looked through, and of which it let these parts through.

        They are whole stretches and begin where the bytes fed so far end; the source's end is not among them,
        nor right behind them. ``torn``: they end inside of a line that is longer than a line may be.
        """
        for cell in self._waiting:
            self._take(cell)
        self._waiting.clear()
        self._sift()
        self.apply(itertools.chain.from_iterable(cells))
        self._whole = False
        self.bytes += size
        self._cutter = CellCutter(self._sizes.cell, self.bytes, torn=torn)

    def finish(self) -> None:
        """The source has ended."""
        rest = self._decoded(b"", final=True)
        self._waiting.extend([*self._cutter.feed(rest), *self._cutter.finish()])
        left = sum(len(cell.data) for cell in self._waiting)
        for cell in self._waiting:
            front = left - self._sizes.tail
            left -= len(cell.data)
            end = cell_end(cell.data, front) if 0 < front < len(cell.data) else None
            if front <= 0:
                self._read(cell)
            elif end is None or end >= len(cell.data):
                self._take(cell)
            else:
                self._take(Cell(cell.data[:end], cell.start, cell.place, cell.torn))
                self._read(Cell(cell.data[end:], cell.start + end, cell.place, False))
        self._waiting.clear()
        self._sift()
        self._reading.feed(self._lines.finish())

    def apply(self, parts: Iterable[Left | Piece]) -> None:
        """Read what a sieve let through of this source, here or elsewhere."""
        lines: list[Line] = []
        asides: list[Aside] = []
        for part in parts:
            if isinstance(part, Left):
                lines += self._lines.skip(part.ends)
                asides.append(Aside(len(lines), self._lines.source, part.segments, part.kinds, part.losses))
            else:
                if part.more:
                    asides.append(Aside(len(lines), self._lines.source, more=part.more))
                lines += self._lines.feed(part.head + part.data)
        self._reading.feed(lines, asides)

    def _decoded(self, data: bytes, *, final: bool = False) -> bytes:
        """UTF-16 as UTF-8, so that its lines are found."""
        if not self._decided:
            data = self._begun + data
            if len(data) < 3 and not final:
                self._begun = data
                return b""
            self._begun, self._decided = b"", True
            if data[:2] in UTF16_MARKS:
                self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        if self._decoder is not None:
            return self._decoder.decode(data, final).encode("utf-8", "replace")
        return data

    def _take(self, cell: Cell) -> None:
        if not self._sieving:
            self._read(cell)
            return
        if self._in_head:
            rest = self._read_head(cell)
            if rest is None:
                return
            cell = rest
        if self._sieve is None:
            engine = self._engine()
            if engine is None:
                self._sieving = False
                self._read(cell)
                return
            self._sieve = Sieve(engine, self._sizes, self._lines.lead)
        looked = self._sieve.look_through(cell)
        if looked is not None:
            self._looked.append(looked)
        if len(self._looked) >= _TOGETHER:
            self._sift()
        self._whole = False

    def _sift(self) -> None:
        """Sieve the cells that wait for it."""
        if self._looked and self._sieve is not None:
            looked, self._looked = self._looked, []
            self.apply(itertools.chain.from_iterable([self._sieve.sift(one) for one in looked]))

    def _read_head(self, cell: Cell) -> Cell | None:
        """Read what belongs to the head; gives what is left of the cell."""
        end = self._head_end(cell.data)
        if end is None or end >= len(cell.data):
            self._head += len(cell.data)
            self._head_segments += _segments(cell.data)
            self._read(cell)
            return None
        self._in_head = False
        if end:
            self.apply([Piece(cell.data[:end])])
        return Cell(cell.data[end:], cell.start + end, cell.place, False)

    def _head_end(self, data: bytes) -> int | None:
        """Where the head ends in the next bytes; ``None`` if it goes on behind them."""
        sizes = self._sizes
        for times in range(1, _LONG_HEAD + 1):
            wanted = times * sizes.head - self._head
            end = 0 if wanted <= 0 else cell_end(data, wanted)
            if end is None:
                return None
            if times == _LONG_HEAD or self._head_segments + _segments(data[:end]) >= sizes.head_segments:
                return end
        raise AssertionError

    def _read(self, cell: Cell) -> None:
        self._sift()
        data = cell.data
        if cell.torn and not self._whole:  # the rest of a line whose beginning was left out
            end = next((i + 1 for i, byte in enumerate(data) if byte in b"\r\n"), len(data))
            self.apply([Left(1, 0)])
            ended = data[end - 1 : end] in (b"\n", b"\r")
            data = data[max(0, end - TAIL) :] if ended else b""
        self.apply([Piece(data)])
        self._whole = True


def _segments(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r")
