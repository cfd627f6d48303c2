"""The line readers of a run that is watched: one for each source that it prints to."""

from __future__ import annotations

from collections.abc import Iterator

from stallwatch_exporter.files.folds import lead_of
from stallwatch_rules.lines.leads import Lead
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.records import Line

_TRIED_AT = (8, 16, 32, 64, 128, 300)  # lines of a source; of a file, the first 300 are looked at
_SHOWN = b"Traceback (most recent call last):"  # follows no logger's lead, and is what has to be read right
_MOST_SHOWN = 16  # tracebacks that are a reason to look
_LONGEST = 64 * 1024  # bytes


class LeadLearning:
    """Learns what stands before all lines of a source, while they come: each is read once, as it comes.

    Of a file, the first lines are looked at before any is read. Here a portion is, with what came before it,
    a few times; what came before has been read with its lead.
    """

    def __init__(self) -> None:
        self._head = bytearray()
        self._tries = list(_TRIED_AT)
        self._shown = 0

    def take(self, data: bytes) -> Lead | None:
        """What comes next, before it is read; the lead, once it is known."""
        if not self._tries:
            return None
        self._head += data[: _LONGEST - len(self._head)]
        lines = self._head.count(b"\n")
        shows = _SHOWN in data and self._shown < _MOST_SHOWN
        self._shown += shows
        full = len(self._head) >= _LONGEST
        if not (shows or full or lines >= self._tries[0]):
            return None
        whole = len(self._head) if shows else self._head.rfind(b"\n") + 1
        found = lead_of(bytes(self._head[:whole]))
        self._tries = [] if found or full else [one for one in self._tries if one > lines]
        if not self._tries:
            self._head.clear()
        return found


class Readers:
    """Turns the bytes of each source into lines."""

    def __init__(self) -> None:
        self._readers: dict[str, LineReader] = {}
        self._learning: dict[str, LeadLearning] = {}

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
            lead = reader.lead if reader is not None else None
            reader = self._readers[source] = LineReader(source, rank, lead=lead)
        if reader.lead is None:
            reader.lead = self._learning.setdefault(source, LeadLearning()).take(data)
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
