"""Every sample of the user's logs, as rows or as Arrow tables, file by file."""

from __future__ import annotations

import codecs
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stallwatch_logs.inputs import Limits
from stallwatch_logs.line_format import lead_of
from stallwatch_logs.log_files import LogFile, OnProgress, ProgressReader, expand
from stallwatch_logs.portions import broken_at
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.samples.table import Row, RowReader

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 4 * 1024 * 1024  #: bytes that are looked through at once
_FIRST_LINES = 1000  # they show what kind of log it is
_ROWS = 10_000


class Sampling:
    """Reads the samples of some paths; what could not be read is in ``problems``."""

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        progress: OnProgress | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.files, self.problems = expand(paths, limits=limits)
        self._reader = ProgressReader(self.files, progress)

    def rows(self) -> Iterator[list[Row]]:
        """All rows, read line by line: needs nothing but Python."""
        for file in self.files:
            yield from _row_lists(file, self._reader.chunks(file, self.problems))

    def tables(self) -> Iterator[pa.Table]:
        """The same as Arrow tables, read in blocks where the log allows it."""
        from stallwatch_exporter.sampling.tables import table_of_block, table_of_rows

        for file in self.files:
            chunks = self._reader.chunks(file, self.problems)
            start = next(chunks, b"")
            reader = _reader(file, start)
            head, rest = _head(itertools.chain([start], chunks))
            first = reader.feed(head)
            if not _in_blocks(reader):
                rows = RowReader()
                lists = _continued(reader, rows, [*rows.feed(first)], rest)
                yield from (table_of_rows(some) for some in lists if some)
                continue
            from stallwatch_rules.samples.bulk import BulkReader
            from stallwatch_rules.scan.chunks import whole_lines

            bulk = BulkReader(file.name, file.rank)
            for block in whole_lines(itertools.chain([head.removeprefix(codecs.BOM_UTF8)], rest), BLOCK):
                yield table_of_block(bulk.read(block), file.name)


def _row_lists(file: LogFile, chunks: Iterator[bytes]) -> Iterator[list[Row]]:
    first = next(chunks, b"")
    yield from _continued(_reader(file, first), RowReader(), [], itertools.chain([first], chunks))


def _continued(
    reader: LineReader, rows: RowReader, known: list[Row], chunks: Iterator[bytes]
) -> Iterator[list[Row]]:
    for chunk in chunks:
        known += rows.feed(reader.feed(chunk))
        if len(known) >= _ROWS:
            yield known
            known = []
    yield [*known, *rows.feed(reader.finish()), *rows.finish()]


def _reader(file: LogFile, head: bytes) -> LineReader:
    return LineReader(file.name, file.rank, broken_at(head), lead=lead_of(head)).look_ahead(head)


def _head(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first lines, whole, and what follows them."""
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


def _in_blocks(reader: LineReader) -> bool:
    """Whether the first lines allow to read the log in blocks, and the library for it is there."""
    if not reader.ordinary or reader.lines < _FIRST_LINES:
        return False
    from stallwatch_rules.pages.patterns import hyperscan

    return hyperscan is not None
