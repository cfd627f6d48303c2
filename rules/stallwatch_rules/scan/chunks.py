"""A source's bytes cut into chunks at offsets of their own, however the bytes come in.

What is read of a source and what is left out is decided chunk by chunk, so that the decision depends on
nothing but the source's bytes, and not on the portions in which they came.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stallwatch_rules.lines.wrapped import MAX_LINE
from stallwatch_rules.text.lazy import lazy

_LINE_END = lazy(rb"[\r\n]")


class Chunk(NamedTuple):
    """Whole segments that follow one another: what a line feed or a carriage return ends."""

    data: bytes
    start: int  #: offset in the source
    place: int  #: which chunk of the source: its place in the grid, so some may be missing
    torn: bool  #: it begins inside of a line that is longer than a line may be


class ChunkCutter:
    """Cuts at the first line feed at or behind each multiple of ``size``.

    If none comes for ``MAX_LINE`` bytes, it cuts at a carriage return or else there: what is left of such a
    line is dropped by the reader of lines anyway.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[bytes] = []  # portions of the chunk so far: put together once, at its end
        self.held = 0  #: bytes of the chunk that is not complete yet
        self._start = 0
        self._torn = False

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """The chunks that ``data`` completes."""
        self._held.append(data)
        self.held += len(data)
        while self.held >= (boundary := self._size - self._start % self._size):
            whole = b"".join(self._held)
            end = chunk_end(whole, boundary)
            if end is None:
                self._held = [whole]
                return
            self._held, self.held = [whole[end:]], len(whole) - end
            yield self._cut(whole[:end])

    def finish(self) -> Iterator[Chunk]:
        """What is left at the source's end."""
        if self.held:
            yield self._cut(b"".join(self._held))
            self._held, self.held = [], 0

    def _cut(self, data: bytes) -> Chunk:
        chunk = Chunk(data, self._start, self._start // self._size, self._torn)
        self._start += len(data)
        # Behind a hole of NULs, which a truncated log has, a line begins for us.
        self._torn = data[-1:] not in (b"\n", b"\r", b"\0")
        return chunk


def chunk_end(data: bytes, boundary: int) -> int | None:
    """Where the chunk ends whose grid line lies at ``boundary``; ``None`` as long as too little is there."""
    feed = data.find(b"\n", boundary - 1, boundary + MAX_LINE) + 1
    return feed or (line_end(data, boundary) if len(data) >= boundary + MAX_LINE else None)


def line_end(data: bytes, boundary: int) -> int | None:
    """Where the first segment ends at or behind ``boundary``; ``None`` as long as too little is there."""
    if len(data) < boundary:
        return None
    found = _LINE_END.search(data, boundary - 1, boundary + MAX_LINE)
    if found is not None:
        return found.end()
    return boundary + MAX_LINE if len(data) >= boundary + MAX_LINE else None


def whole_lines(portions: Iterator[bytes], size: int) -> Iterator[bytes]:
    """A source's bytes in blocks of whole lines, the last of which is ended."""
    held: list[bytes] = []
    length = 0
    for portion in portions:
        length += len(portion)
        end = portion.rfind(b"\n") + 1 if length >= size else 0
        if end:
            yield b"".join([*held, portion[:end]])
            held, length = [portion[end:]], len(portion) - end
        else:
            held.append(portion)
    if length:
        yield b"".join(held) + b"\n"
