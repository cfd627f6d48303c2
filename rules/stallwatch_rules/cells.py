"""A source's bytes cut into cells at offsets of their own, however the bytes come in.

What is read of a source and what is left out is decided cell by cell, so that the decision depends on nothing
but the source's bytes: not on the portions in which they came, nor on which process looks at them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from stallwatch_rules.lines import MAX_LINE

LINE_END = re.compile(rb"[\r\n]")


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
        self._held = bytearray()
        self._start = start
        self._torn = torn

    def feed(self, data: bytes) -> Iterator[Cell]:
        """The cells that ``data`` completes."""
        self._held += data
        while True:
            index = self._start // self._size
            end = cell_end(self._held, (index + 1) * self._size - self._start)
            if end is None:
                return
            yield self._cut(end)

    def finish(self) -> Iterator[Cell]:
        """What is left at the source's end."""
        if self._held:
            yield self._cut(len(self._held))

    def _cut(self, end: int) -> Cell:
        with memoryview(self._held) as held:  # a slice of it is no copy
            data = bytes(held[:end])
        del self._held[:end]
        cell = Cell(data, self._start, self._start // self._size, self._torn)
        self._start += end
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
