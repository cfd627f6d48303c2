"""A source's bytes in blocks of whole lines, however they come in."""

from __future__ import annotations

from stallwatch_rules.lines.wrapped import MAX_LINE, hold

PORTION = 256 * 1024  #: bytes taken at once: a processor's cache holds them until all is done with them


class LineBlocks:
    """Cuts at line feeds.

    Where there is none for longer than a line may be, a block ends at a carriage return, so that the line of
    a progress bar is no burden; of a longer segment as much is kept as the reader of lines keeps.

    All blocks lie in the same memory, one after the other: to write into memory that was never used takes a
    processor longer than to look for all patterns in it.
    """

    def __init__(self) -> None:
        self._memory = bytearray(PORTION + MAX_LINE + 1)  # more than a line is never held
        self._begin = self._end = 0  # where the beginning of the unfinished line lies in it

    def room(self) -> memoryview:
        """Where the next bytes of the source may be put. Ends the last block."""
        held = self._end - self._begin
        self._memory[:held] = self._memory[self._begin : self._end]
        self._begin, self._end = 0, held
        return memoryview(self._memory)[held : held + PORTION]

    def filled(self, count: int) -> tuple[bytearray, int]:
        """Bytes of which the first so many are the whole lines, or segments, that ``count`` bytes complete
        which were put into the ``room``."""
        data, length = self._memory, self._end + count
        end = data.rfind(b"\n", 0, length) + 1
        if length - end > MAX_LINE:
            end = data.rfind(b"\r", end, length) + 1 or end
        self._begin, self._end = end, length
        if length - end > MAX_LINE + 1:
            kept = bytearray()
            hold(kept, bytes(data[end:length]))
            self._end = end + len(kept)
            data[end : self._end] = kept
        return data, end

    def finish(self) -> tuple[bytearray, int]:
        """What is left at the source's end."""
        rest = self._memory[self._begin : self._end]
        self._begin = self._end = 0
        return rest, len(rest)
