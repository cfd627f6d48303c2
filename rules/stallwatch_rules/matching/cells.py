"""A source's bytes cut into cells at offsets of their own, however the bytes come in.

What is read of a source and what is left out is decided cell by cell, so that the decision depends on nothing
but the source's bytes: not on the portions in which they came, nor on which process looks at them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stallwatch_rules.lines.reader import MAX_LINE
from stallwatch_rules.text.lazy import lazy

LINE_END = lazy(rb"[\r\n]")


class Cell(NamedTuple):
    """A stretch of whole segments: what a line feed or a carriage return ends."""

    data: bytes
    start: int  #: offset in the source
    place: int  #: which cell of the source: its place in the grid, so some may be missing
    torn: bool  #: it begins inside of a line that is longer than a line may be


class CellCutter:
    """Cuts at the first line end at or behind each multiple of ``size``.

    A line that goes on for more than ``MAX_LINE`` bytes behind it is cut there: what is left of it is dropped
    by the reader of lines anyway.
    """

    def __init__(self, size: int, start: int = 0, *, torn: bool = False) -> None:
        self._size = size
        self._held: list[bytes] = []  # portions of the cell so far: put together once, at its end
        self._length = 0  # of them
        self._start = start
        self._torn = torn

    @property
    def held(self) -> int:
        """Bytes of the cell that is not complete yet."""
        return self._length

    def feed(self, data: bytes) -> Iterator[Cell]:
        """The cells that ``data`` completes."""
        while True:
            boundary = (self._start // self._size + 1) * self._size - self._start
            end = self._end_in(data, boundary - self._length)
            if end is None:
                self._hold(data)
                return
            yield self._cut(data[:end])
            data = data[end:]

    def finish(self) -> Iterator[Cell]:
        """What is left at the source's end."""
        if self._length:
            yield self._cut(b"")

    def _end_in(self, data: bytes, boundary: int) -> int | None:
        """Where in the next portion the cell ends, if it does there; its grid line may lie before it."""
        if boundary > 0:
            return cell_end(data, boundary)
        if self._held[-1][-1:] in (b"\n", b"\r") and boundary == 0:
            return 0
        found = LINE_END.search(data, 0, max(0, boundary + MAX_LINE))
        if found is not None:
            return found.end()
        return boundary + MAX_LINE if len(data) >= boundary + MAX_LINE else None

    def _hold(self, data: bytes) -> None:
        if data:
            self._held.append(data)
            self._length += len(data)

    def _cut(self, last: bytes) -> Cell:
        self._hold(last)
        data = b"".join(self._held)
        cell = Cell(data, self._start, self._start // self._size, self._torn)
        self._held.clear()
        self._start += len(data)
        self._length = 0
        # Behind a hole of NULs, which a truncated log has, a line begins for us.
        self._torn = data[-1:] not in (b"\n", b"\r", b"\0")
        return cell


def cell_end(data: bytes | bytearray, boundary: int) -> int | None:
    """Where the cell ends whose grid line lies at ``boundary``; ``None`` as long as too little is there."""
    if len(data) < boundary:
        return None
    found = LINE_END.search(data, boundary - 1, boundary + MAX_LINE)
    if found is not None:
        return found.end()
    return boundary + MAX_LINE if len(data) >= boundary + MAX_LINE else None
