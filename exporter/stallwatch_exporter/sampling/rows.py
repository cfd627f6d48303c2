"""Read all samples in the user's logs as rows, file by file."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence

from stallwatch_logs.inputs import Limits
from stallwatch_logs.line_format import prefix_of
from stallwatch_logs.log_files import LogFile, OnProgress, ProgressReader, expand
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.samples.bulk import BulkReader
from stallwatch_rules.samples.series import SeriesReader
from stallwatch_rules.samples.table import Row, RowReader
from stallwatch_rules.scan.chunks import whole_lines

BLOCK = 4 * 1024 * 1024  #: number of bytes that are searched at a time
_ROWS = 10_000
_FIRST_LINES = 1000  # number of lines used to detect the kind of log


class Sampling:
    """Reader of the samples in the user's paths. ``problems`` lists the inputs that could not be read."""

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        progress: OnProgress | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.files, self.problems = expand(paths, limits=limits)
        self._reader = ProgressReader(self.files, progress)

    def rows(self, named: Callable[[str], str] = str) -> Iterator[list[Row]]:
        """Yield all rows in lists of limited size, file by file. `named` returns the filename to show."""
        for file in self.files:
            held: list[Row] = []
            for rows in _rows_of(file, self._reader.chunks(file, self.problems), named(file.name)):
                held += rows
                if len(held) >= _ROWS:
                    yield held
                    held = []
            yield held


def _rows_of(file: LogFile, chunks: Iterator[bytes], name: str) -> Iterator[list[Row]]:
    start = next(chunks, b"")
    series = SeriesReader()
    reader = LineReader(file.name, file.rank, prefix_of(start)).look_ahead(start)
    rows = RowReader(name, series)
    head, rest = _head(itertools.chain([start], chunks))
    rows.feed(reader.feed(head))
    if reader.ordinary and reader.lines >= _FIRST_LINES and not series.learnt:
        bulk = BulkReader(reader, rows)
        for block in whole_lines(rest, BLOCK):
            bulk.read(block)
            yield rows.known()
    else:
        for chunk in rest:
            rows.feed(reader.feed(chunk))
            yield rows.known()
        rows.feed(reader.finish())
    yield rows.finish()


def _head(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Return the first complete lines, and an iterator over the remaining bytes of the file."""
    head = b""
    for chunk in chunks:
        head += chunk
        if head.count(b"\n") >= _FIRST_LINES or len(head) > BLOCK:
            break
    at = 0
    for _ in range(_FIRST_LINES):
        at = head.find(b"\n", at) + 1
        if not at:
            return head, chunks
    return head[:at], itertools.chain([head[at:]], chunks)
