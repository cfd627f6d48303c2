"""The line readers of a run that is watched: one for each source that it prints to."""

from __future__ import annotations

from collections.abc import Iterator

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.records import Line


class Readers:
    """Turns the bytes of each source into lines."""

    def __init__(self) -> None:
        self._readers: dict[str, LineReader] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def lines(
        self, source: str, data: bytes, now: float | None, rank: int | None, *, fresh: bool = False
    ) -> list[Line]:
        """The lines that ``data`` completes. With ``fresh`` it does not continue what came before."""
        reader = self._readers.get(source)
        lines: list[Line] = []
        if reader is None or fresh:
            if reader is not None:
                lines = reader.finish(now)
            reader = self._readers[source] = LineReader(source, rank)
        return lines + reader.feed(data, now)

    def past(self, source: str, data: bytes, rank: int | None, shift: float) -> list[Line]:
        """Lines that were there before us, with their own times moved by ``shift`` seconds."""
        lines = self.lines(source, data, None, rank)
        return [_moved(line, shift) for line in lines] if shift else lines

    def idle(self, since: float) -> Iterator[list[Line]]:
        """Progress bars that were not drawn anew after ``since``, source by source."""
        for reader in self._readers.values():
            yield reader.idle(since)

    def finish(self, now: float) -> Iterator[list[Line]]:
        """What stands unfinished at the end, source by source."""
        for reader in self._readers.values():
            yield reader.finish(now)


def _moved(line: Line, seconds: float) -> Line:
    if line.time is None:
        return line
    return Line(line.text, line.source, line.number, line.rank, line.time + seconds)
