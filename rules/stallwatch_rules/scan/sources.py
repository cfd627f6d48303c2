"""Read one source of a run: the beginning and the end completely, and selected lines in between."""

from __future__ import annotations

import codecs
import itertools
from collections import deque
from collections.abc import Callable, Iterable

from stallwatch_rules.lines.long_lines import TAIL
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.reading import RunReading, SkippedCount
from stallwatch_rules.records import Line
from stallwatch_rules.scan.chunks import Chunk, ChunkCutter, line_end
from stallwatch_rules.scan.heads import REACH, head_texts
from stallwatch_rules.scan.patterns import ScanEngine
from stallwatch_rules.scan.sampled import SampledScan, SearchedChunk, Skipped, Window
from stallwatch_rules.scan.state import ScanSizes

UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_TOGETHER = 8  # number of chunks that are searched together before parts of them are read
_AT_ONCE = 1024  # number of lines that are passed to ``RunReading`` at a time
_LONG_HEAD = 8  # maximum length of a head that has few lines, as a multiple of the usual size


class SourceReading:
    """A reader of one source, which receives the bytes of the source in portions.

    `engine` is called if the source is longer than its head and tail together. If `engine` returns
    ``None``, all lines are read.
    """

    def __init__(
        self,
        reading: RunReading,
        lines: LineReader,
        engine: Callable[[], ScanEngine | None],
        sizes: ScanSizes | None = None,
    ) -> None:
        self._reading = reading
        self._lines = lines
        self._sizes = sizes if sizes is not None else ScanSizes()
        self._engine = engine
        self._scan: SampledScan | None = None
        self._sampling = True
        self._cutter = ChunkCutter(self._sizes.chunk)
        self._waiting: deque[Chunk] = deque()
        self._begun = b""
        self._first = b""  # the first bytes of the source
        self._decoder: codecs.IncrementalDecoder | None = None
        self._decided = False  # True if the reader has checked for a byte order mark
        self._head = 0  # number of bytes of the head that were read
        self._head_segments = 0
        self._in_head = True
        self._whole = True  # True if the last chunk was read to its end
        self._searched: list[SearchedChunk] = []  # chunks from which parts are not selected yet
        self._found: list[Line] = []  # lines to pass to ``RunReading`` together, because each call takes time
        self._asides: list[SkippedCount] = []
        self.bytes = 0

    @property
    def lines(self) -> int:
        """The number of complete lines in the bytes that were received."""
        return self._lines.lines

    @property
    def cut(self) -> int:
        """The number of lines that were shortened because they exceeded the maximum length."""
        return self._lines.cut

    def feed(self, data: bytes) -> None:
        """Read the next portion of the bytes of the source."""
        self.bytes += len(data)
        data = self._decoded(data)
        if (missing := min(REACH, self._sizes.chunk) - len(self._first)) > 0:
            self._first += data[:missing]
        self._waiting.extend(self._cutter.feed(data))
        if not self._waiting:
            return
        behind = sum(len(chunk.data) for chunk in self._waiting) + self._cutter.held
        while self._waiting and (behind := behind - len(self._waiting[0].data)) >= self._sizes.tail:
            self._take(self._waiting.popleft())

    def finish(self) -> None:
        """Read the bytes that are still waiting. Call this method at the end of the source."""
        rest = self._decoded(b"", final=True)
        self._waiting.extend([*self._cutter.feed(rest), *self._cutter.finish()])
        left = sum(len(chunk.data) for chunk in self._waiting)
        for chunk in self._waiting:
            front = left - self._sizes.tail
            left -= len(chunk.data)
            end = line_end(chunk.data, front) if 0 < front < len(chunk.data) else None
            if front <= 0:
                self._read(chunk)
            elif end is None or end >= len(chunk.data):
                self._take(chunk)
            else:
                self._take(Chunk(chunk.data[:end], chunk.start, chunk.place, chunk.torn))
                self._read(Chunk(chunk.data[end:], chunk.start + end, chunk.place, False))
        self._waiting.clear()
        self._select()
        self._found += self._lines.finish()
        self._feed()

    def apply(self, parts: Iterable[Skipped | Window]) -> None:
        """Read the parts of this source that a scan selected.

        The scan can be in this process or in another process.
        """
        lines, asides, source = self._found, self._asides, self._lines.source
        for part in parts:
            if isinstance(part, Skipped):
                lines += self._lines.skip(part.ends)
                asides.append(SkippedCount(len(lines), source, part.segments, part.kinds, part.losses))
            else:
                if part.more:
                    asides.append(SkippedCount(len(lines), source, more=part.more))
                lines += self._lines.feed(part.head + part.data)
            if len(lines) >= _AT_ONCE:
                self._feed()
                lines, asides = self._found, self._asides

    def _feed(self) -> None:
        lines, asides, self._found, self._asides = self._found, self._asides, [], []
        self._reading.feed(lines, asides)

    def _decoded(self, data: bytes, *, final: bool = False) -> bytes:
        """Convert UTF-16 to UTF-8, because the search for line ends requires UTF-8.

        Other bytes are returned unchanged.
        """
        if not self._decided:
            data = self._begun + data
            if len(data) < 3 and not final:
                self._begun = data
                return b""
            self._begun, self._decided = b"", True
            if data[:2] in UTF16_MARKS:
                self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        if self._decoder is not None:
            return self._decoder.decode(data, final).encode("utf-8", "replace")
        return data

    def _take(self, chunk: Chunk) -> None:
        if not self._sampling:
            self._read(chunk)
            return
        if self._in_head:
            rest = self._read_head(chunk)
            if rest is None:
                return
            chunk = rest
        if self._scan is None:
            engine = self._engine()
            if engine is None:
                self._sampling = False
                self._read(chunk)
                return
            self._scan = SampledScan(
                engine, self._sizes, self._lines.lead, head_texts(self._first), self._lines.source
            )
        searched = self._scan.search(chunk)
        if searched is not None:
            self._searched.append(searched)
        if len(self._searched) >= _TOGETHER:
            self._select()
        self._whole = False

    def _select(self) -> None:
        """Select parts of the waiting chunks and read these parts."""
        if self._searched and self._scan is not None:
            searched, self._searched = self._searched, []
            self.apply(itertools.chain.from_iterable([self._scan.select(chunk) for chunk in searched]))

    def _read_head(self, chunk: Chunk) -> Chunk | None:
        """Read the part of a chunk that belongs to the head of the source.

        Return the rest of the chunk, or ``None`` if nothing is left.
        """
        end = self._head_end(chunk.data)
        if end is None or end >= len(chunk.data):
            self._head += len(chunk.data)
            self._head_segments += _segments(chunk.data)
            self._read(chunk)
            return None
        self._in_head = False
        if end:
            self.apply([Window(chunk.data[:end])])
        return Chunk(chunk.data[end:], chunk.start + end, chunk.place, False)

    def _head_end(self, data: bytes) -> int | None:
        """Return the end offset of the head in these bytes, or ``None`` if the head continues after them."""
        sizes = self._sizes
        for times in range(1, _LONG_HEAD + 1):
            wanted = times * sizes.head - self._head
            end = 0 if wanted <= 0 else line_end(data, wanted)
            if end is None:
                return None
            if times == _LONG_HEAD or self._head_segments + _segments(data[:end]) >= sizes.head_segments:
                return end
        raise AssertionError

    def _read(self, chunk: Chunk) -> None:
        self._select()
        data = chunk.data
        if chunk.torn and not self._whole:  # the end of a line whose beginning was skipped
            end = next((i + 1 for i, byte in enumerate(data) if byte in b"\r\n"), len(data))
            self.apply([Skipped(1, 0)])
            ended = data[end - 1 : end] in (b"\n", b"\r")
            data = data[max(0, end - TAIL) :] if ended else b""
        self.apply([Window(data)])
        self._whole = True


def _segments(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r")
