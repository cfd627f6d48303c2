"""Read lines from the output of a watched run, using a separate line reader for each source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stallwatch_logs.line_format import prefix_of
from stallwatch_rules.lines.line_prefix import LinePrefix, certain_prefix
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.records import Line

_TRIED_AT = (8, 16, 32, 64, 128, 300)  # examine a source at these line counts, and a file at 300 lines
_LIKELY_FROM = 64  # Lines needed to accept an uncertain prefix. Fewer lines might all come from one writer.
_SHOWN = b"Traceback (most recent call last):"  # unprefixed line that triggers a check of the line prefix
_MOST_SHOWN = 16  # maximum number of tracebacks that trigger a check
_LONGEST = 64 * 1024  # maximum number of bytes kept for a source
_MOST_HELD = 4 * 1024 * 1024  # maximum number of bytes kept for all sources


class PrefixLearning:
    """Learn the line prefix of a source while its lines arrive.

    For a file, the first 300 lines are examined before any line is read. The lines of a live source are read
    immediately with the prefix known so far, and the source is examined again as it grows. After 300 lines,
    the prefix is the same as for a file.
    """

    def __init__(self) -> None:
        self.lead: LinePrefix | None = None  #: line prefix learned so far
        self._head = bytearray()
        self._tries = list(_TRIED_AT)
        self._shown = 0

    @property
    def held(self) -> int:
        """Number of bytes kept to learn the prefix."""
        return len(self._head)

    @property
    def is_over(self) -> bool:
        """Return whether the prefix is final."""
        return not self._tries

    def take(self, data: bytes) -> LinePrefix | None:
        """Add the next bytes before they are split into lines. Return the current line prefix."""
        if self.is_over:
            return self.lead
        self._head += data[: _LONGEST - len(self._head)]
        lines = self._head.count(b"\n")
        shows = _SHOWN in data and self._shown < _MOST_SHOWN
        self._shown += shows
        full = len(self._head) >= _LONGEST
        if shows or full or lines >= self._tries[0]:
            head = bytes(self._head[: None if shows else self._head.rfind(b"\n") + 1])
            self.lead = prefix_of(head) if full or lines >= _LIKELY_FROM else certain_prefix(head)
            self._tries = [] if full else [count for count in self._tries if count > lines]
            if self.is_over:
                self._head.clear()
        return self.lead


class Readers:
    """Turn the bytes from each source into lines."""

    def __init__(self) -> None:
        self.local_ranks: Sequence[int] = ()  #: ranks on this host; see ``LineReader``
        self._readers: dict[str, LineReader] = {}
        self._learning: dict[str, PrefixLearning] = {}  # learning states of sources that started recently
        self._held = 0  # bytes kept for sources that started recently

    def __len__(self) -> int:
        return len(self._readers)

    def lines(
        self, source: str, data: bytes, now: float | None, rank: int | None, *, fresh: bool = False
    ) -> list[Line]:
        """Return the lines that `data` completes. If `fresh` is true, `data` begins with a new line."""
        reader = self._readers.get(source)
        lines: list[Line] = []
        if reader is None:
            self._learning[source] = PrefixLearning()
            reader = self._readers[source] = LineReader(source, rank)
        elif fresh:
            lines = reader.finish(now)
            reader = self._readers[source] = LineReader(source, rank, lead=reader.lead)
        learning = self._learning.get(source)
        if learning is not None:
            reader.lead = self._learnt(source, learning, data)
        reader.local_ranks = self.local_ranks
        return lines + reader.feed(data, now)

    def _learnt(self, source: str, learning: PrefixLearning, data: bytes) -> LinePrefix | None:
        """Return the line prefix of a source, and limit the bytes that are kept for all sources."""
        before = learning.held
        lead = learning.take(data)
        self._held += learning.held - before
        if learning.is_over:
            del self._learning[source]
        while self._held > _MOST_HELD:  # stop learning for the oldest source, which has had the most lines
            self._held -= self._learning.pop(next(iter(self._learning))).held
        return lead

    def past(self, source: str, data: bytes, rank: int | None, shift: float) -> list[Line]:
        """Return lines that were printed before the agent started. Shift their times by `shift` seconds."""
        lines = self.lines(source, data, None, rank)
        return [_moved(line, shift) for line in lines] if shift else lines

    def idle(self, since: float) -> Iterator[list[Line]]:
        """Yield, for each source, the progress bars that have not been redrawn since `since`."""
        for reader in self._readers.values():
            yield reader.idle(since)

    def finish(self, now: float) -> Iterator[list[Line]]:
        """Yield, for each source, the unfinished lines at the end of the output."""
        for reader in self._readers.values():
            yield reader.finish(now)


def _moved(line: Line, seconds: float) -> Line:
    if line.time is None:
        return line
    return Line(line.text, line.source, line.number, line.rank, line.time + seconds)
