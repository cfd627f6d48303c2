"""Split the bytes of a source into chunks at fixed offsets, regardless of the portions that arrive.

The lines to read are selected for each chunk, so that the selection depends only on the bytes of the source,
and not on the portions in which they arrive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stallwatch_rules.lines.long_lines import MAX_LINE
from stallwatch_rules.text.lazy import lazy

_LINE_END = lazy(rb"[\r\n]")


class Chunk(NamedTuple):
    """Consecutive complete segments, each of which ends with a line feed or a carriage return."""

    data: bytes
    start: int  #: offset in the source
    place: int  #: number of the chunk, from its offset in the source; numbers can be missing
    torn: bool  #: True if the chunk begins inside a line that exceeds the maximum length


class ChunkCutter:
    """Splitter of a source into chunks. A chunk ends at the first line feed after a multiple of ``size``.

    If the next ``MAX_LINE`` bytes contain no line feed, the chunk ends at a carriage return, or else after
    these bytes, because the line reader drops the rest of such a line anyway.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[bytes] = []  # portions of the chunk so far, joined once at its end
        self.held = 0  #: number of bytes of the chunk that is not complete yet
        self._start = 0
        self._torn = False

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """Yield the chunks that are complete when ``data`` is added."""
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
        """Yield the bytes after the last chunk as another chunk, because the source has ended."""
        if self.held:
            yield self._cut(b"".join(self._held))
            self._held, self.held = [], 0

    def _cut(self, data: bytes) -> Chunk:
        chunk = Chunk(data, self._start, self._start // self._size, self._torn)
        self._start += len(data)
        # A new line follows a hole of null bytes, as in a truncated log.
        self._torn = data[-1:] not in (b"\n", b"\r", b"\0")
        return chunk


def chunk_end(data: bytes, boundary: int) -> int | None:
    """Return the end of a chunk of at least ``boundary`` bytes; ``None`` if more bytes are needed."""
    feed = data.find(b"\n", boundary - 1, boundary + MAX_LINE) + 1
    return feed or (line_end(data, boundary) if len(data) >= boundary + MAX_LINE else None)


def line_end(data: bytes, boundary: int) -> int | None:
    """Return the end of the first segment at or after ``boundary``; ``None`` if more bytes are needed."""
    if len(data) < boundary:
        return None
    found = _LINE_END.search(data, boundary - 1, boundary + MAX_LINE)
    if found is not None:
        return found.end()
    return boundary + MAX_LINE if len(data) >= boundary + MAX_LINE else None


def whole_lines(portions: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield a source's bytes in blocks of complete lines, with a line feed after the last line."""
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
