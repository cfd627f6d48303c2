"""Split the bytes of a source into chunks at offsets that do not depend on how the bytes arrive.

For each chunk, Stallwatch selects the lines to read. Fixed chunks ensure that the selection depends only on
the bytes of the source, not on the portions in which the bytes arrive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stallwatch_rules.lines.long_lines import MAX_LINE
from stallwatch_rules.text.lazy import lazy

_LINE_END = lazy(rb"[\r\n]")


class Chunk(NamedTuple):
    """Consecutive complete segments. A segment ends with a line feed or a carriage return."""

    data: bytes
    start: int  #: offset of the chunk in the source
    place: int  #: number of the chunk, derived from its offset in the source; some numbers can be missing
    torn: bool  #: True if the chunk begins inside a line that exceeds the maximum length


class ChunkCutter:
    """A cutter that splits a source into chunks.

    A chunk ends at the first line feed after a multiple of `size`. If the next ``MAX_LINE`` bytes contain no
    line feed, the chunk ends at a carriage return. If they contain no carriage return either, the chunk ends
    after these bytes, because the line reader drops the rest of such a line.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        # Portions of the incomplete chunk. They are joined when the chunk is complete.
        self._held: list[bytes] = []
        self.held = 0  #: number of bytes in the chunk that is not complete yet
        self._start = 0
        self._torn = False

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """Yield the chunks that are complete after `data` is added."""
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
        """Yield the bytes after the last complete chunk as another chunk.

        Call this method at the end of the source.
        """
        if self.held:
            yield self._cut(b"".join(self._held))
            self._held, self.held = [], 0

    def _cut(self, data: bytes) -> Chunk:
        chunk = Chunk(data, self._start, self._start // self._size, self._torn)
        self._start += len(data)
        # If a chunk ends with null bytes, as in a truncated log, the next chunk begins with a new line.
        self._torn = data[-1:] not in (b"\n", b"\r", b"\0")
        return chunk


def chunk_end(data: bytes, boundary: int) -> int | None:
    """Return the end offset of a chunk of `boundary` or more bytes, or ``None`` if more bytes are needed."""
    feed = data.find(b"\n", boundary - 1, boundary + MAX_LINE) + 1
    return feed or (line_end(data, boundary) if len(data) >= boundary + MAX_LINE else None)


def line_end(data: bytes, boundary: int) -> int | None:
    """Return the end offset of the first segment that ends at or after `boundary`.

    Return ``None`` if more bytes are needed.
    """
    if len(data) < boundary:
        return None
    found = _LINE_END.search(data, boundary - 1, boundary + MAX_LINE)
    if found is not None:
        return found.end()
    return boundary + MAX_LINE if len(data) >= boundary + MAX_LINE else None


def whole_lines(portions: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield the bytes of a source in blocks of complete lines. A line feed is added after the last line."""
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
