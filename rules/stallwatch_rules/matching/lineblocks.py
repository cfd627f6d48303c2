"""A source's bytes in blocks of whole lines, however they come in."""

from __future__ import annotations

from stallwatch_rules.lines.longlines import MAX_LINE, hold


class LineBlocks:
    """Cuts at line feeds.

    Where there is none for longer than a line may be, a block ends at a carriage return, so that the line of
    a progress bar is no burden; of a longer segment as much is kept as the reader of lines keeps.
    """

    def __init__(self) -> None:
        self._held = b""  # the beginning of the unfinished line

    def feed(self, data: bytes) -> tuple[bytes, int]:
        """Bytes of which the first so many are the whole lines, or segments, that ``data`` completes."""
        # Some bytes before a portion cost less as a copy of all than as a block of their own.
        data = self._held + data if self._held else data
        end = data.rfind(b"\n") + 1
        if len(data) - end > MAX_LINE:
            end = data.rfind(b"\r", end) + 1 or end
        self._held = data[end:]
        if len(self._held) > MAX_LINE + 1:
            kept = bytearray()
            hold(kept, self._held)
            self._held = bytes(kept)
        return data, end

    def finish(self) -> tuple[bytes, int]:
        """What is left at the source's end."""
        rest, self._held = self._held, b""
        return rest, len(rest)
