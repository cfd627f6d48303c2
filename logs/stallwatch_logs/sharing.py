"""Shares a run's files, or the ranges of one large file, between this process and others.

What is selected of a section depends on nothing before it (``scan.state``), so another process can find it;
this one reads the beginning, the end and what was selected.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

from stallwatch_logs.file_reading import Engines, FileRead, Within, read_apart, read_file
from stallwatch_logs.inputs import Limits, is_sparse
from stallwatch_logs.line_format import lead_of
from stallwatch_logs.log_files import LogFile
from stallwatch_logs.portions import broken_at, edge, file_chunks
from stallwatch_logs.workers import Board, Job, Pages, Range, ScannedRange, Wanted, read_away, scan_range
from stallwatch_rules.lines.reader import MAX_LINE, LineReader
from stallwatch_rules.reading import RunReading
from stallwatch_rules.scan.patterns import ScanEngine
from stallwatch_rules.scan.sources import UTF16_MARKS, SourceReading
from stallwatch_rules.scan.state import ScanSizes

BATCH = 16 * 1024 * 1024  #: bytes on disk that are handed over at once, if the files are small
_A_FILE = 32 * 1024  # what opening one costs, in bytes read
_EVERY = 0.1  # seconds between two looks at those who read, and two reports of the progress

J = TypeVar("J")
R = TypeVar("R")


class _Handout(Generic[J, R]):
    """Jobs that are handed to an executor, ``window`` at a time; ``call`` is what it calls for one."""

    def __init__(
        self,
        executor: Executor,
        window: int,
        jobs: Iterable[J],
        call: Callable[[J], tuple[Callable[..., R], object]],
    ) -> None:
        self._executor: Executor | None = executor  # none any more once it is broken
        self._window = window
        self._call = call
        self._running: dict[Future[R], J] = {}
        self.waiting = deque(jobs)
        self.failed: deque[J] = deque()  #: those that the executor failed to do

    @property
    def broken(self) -> bool:
        """Whether its processes died, or none can be started."""
        return self._executor is None

    def pump(self) -> list[tuple[J, R]]:
        """Take what others have done, and hand further jobs to them."""
        done = []
        for future in [future for future in self._running if future.done()]:
            job = self._running.pop(future)
            error = CancelledError() if future.cancelled() else future.exception()
            if error is None:
                done.append((job, future.result()))
                continue
            if isinstance(error, BrokenExecutor):
                self._executor = None
            self.failed.append(job)
        while self._executor is not None and self.waiting and len(self._running) < self._window:
            function, argument = self._call(self.waiting[0])
            try:
                future = self._executor.submit(function, argument)
            except (BrokenExecutor, OSError):
                self._executor = None
                break
            self._running[future] = self.waiting.popleft()
        return done

    def wait(self) -> None:
        """Wait a moment for one of the jobs."""
        wait(self._running, timeout=_EVERY, return_when=FIRST_COMPLETED)


def batches(files: Sequence[LogFile]) -> list[list[int]]:
    """The numbers of those files that others can read, the largest first, small ones together.

    A large file that came last would keep one process busy alone.
    """
    found: list[list[int]] = []
    held = BATCH
    for number in sorted((n for n, file in enumerate(files) if file.path), key=lambda n: -files[n].size):
        cost = files[number].size + _A_FILE
        if held + cost > BATCH:
            found.append([])
            held = 0
        found[-1].append(number)
        held += cost
    return found


class Sharing:
    """Reads files here and by an executor.

    ``window`` is how many batches are handed over at a time. With ``here``, this process reads the small ones
    while others read the large ones; it reads what they fail to read in any case. ``pages`` go with each job
    if the executor's processes do not have them.
    """

    def __init__(
        self,
        files: Sequence[LogFile],
        executor: Executor,
        window: int,
        *,
        engines: Engines,
        sizes: ScanSizes,
        board: Board,
        on_bytes: Callable[[int], None],
        pages: Pages | None = None,
        digest: str,
        limits: Limits | None = None,
        here: bool = False,
    ) -> None:
        def call(numbers: list[int]) -> tuple[Callable[[Job], list[FileRead]], Job]:
            wanted = tuple(Wanted.of(number, files[number]) for number in numbers)
            return read_away, Job(wanted, sizes, limits, digest, pages)

        self._files = files
        self._engines, self._sizes = engines, sizes
        self._board = board
        self._on_bytes = on_bytes
        self._report_at = 0.0
        self._here = here
        self._batches = _Handout(executor, window, batches(files), call)
        self._read: dict[int, FileRead] = {}  # until it is their turn

    def read(self, reading: RunReading) -> Iterator[tuple[LogFile, FileRead]]:
        """Read all files into the run's reading, in their order."""
        for number, file in enumerate(self._files):
            if not file.path:
                read = read_file(file, reading, self._engines, self._within(number), self._sizes)
            else:
                while number not in self._read:
                    self._step()
                read = self._read.pop(number)
                if read.reading is not None:
                    reading.merge(read.reading)
            self._board.report(number, file.size)
            self._report(always=True)
            yield file, replace(read, reading=None)

    def _step(self) -> None:
        """Read a batch, or wait for one."""
        self._pump()
        if self._batches.failed:
            self._read_here(self._batches.failed.popleft())
        elif self._batches.waiting and (self._here or self._batches.broken):
            self._read_here(self._batches.waiting.pop())
        else:
            self._batches.wait()
            self._report()

    def _pump(self) -> None:
        for numbers, found in self._batches.pump():
            for number, read in zip(numbers, found, strict=True):
                self._read[number] = read
                self._board.report(number, self._files[number].size)

    def _read_here(self, numbers: list[int]) -> None:
        for number in numbers:
            self._read[number] = read_apart(
                self._files[number], self._engines, self._within(number), self._sizes
            )

    def _within(self, number: int) -> Within:
        def within(read: int) -> None:
            self._board.report(number, read)
            self._pump()
            self._report()

        return within

    def _report(self, *, always: bool = False) -> None:
        now = time.monotonic()
        if always or now >= self._report_at:
            self._report_at = now + _EVERY
            read = self._board.read()
            # A compressed file counts by its size on disk, once it is read.
            self._on_bytes(sum(min(part, file.size) for part, file in zip(read, self._files, strict=False)))


def ranges_of(file: LogFile, sizes: ScanSizes) -> list[Range]:
    """The sections of a file that others may scan: all but the first and those that reach into its end."""
    section = sizes.chunk * sizes.section
    if not file.plain or file.size < 2 * section or is_sparse(file.path):
        return []
    behind = (file.size - 2 * sizes.tail - MAX_LINE) // section
    return [
        Range(file.path, number * sizes.section, (number + 1) * sizes.section) for number in range(1, behind)
    ]


class RangeReading:
    """Reads one file with the help of an executor, to which ``window`` ranges are handed at a time.

    ``scan`` is what the executor calls with a range. What it fails to do is done here.
    """

    def __init__(
        self,
        executor: Executor,
        window: int,
        scan: Callable[[Range], ScannedRange],
        engines: Engines,
        within: Within,
    ) -> None:
        self._window = window
        self._engines = engines
        self._within = within
        none: list[Range] = []
        self._ranges = _Handout(executor, window, none, lambda one: (scan, one))
        self._scanned: dict[Range, ScannedRange] = {}

    def read(self, file: LogFile, reading: RunReading, sizes: ScanSizes | None = None) -> FileRead | None:
        """Read a file into a reading; ``None`` if it has no ranges, or is to be read whole."""
        sizes = sizes if sizes is not None else ScanSizes()
        engine, ranges = self._engines.scan(), ranges_of(file, sizes)
        if not ranges or engine is None:
            return None
        read = FileRead(None)
        head = next(file.chunks(read.problems, read.binary), b"")
        lead = lead_of(head)
        if not head or head[:2] in UTF16_MARKS or (lead is not None and lead.quoted):
            return None
        ranges = [one._replace(lead=lead) for one in ranges]
        lines = LineReader(file.name, file.rank, broken_at(head), lead=lead).look_ahead(head)
        source = SourceReading(reading, lines, lambda: engine, sizes)
        self._ranges.waiting.extend(ranges)
        with Path(file.path).open("rb") as raw:
            begun = edge(raw.fileno(), ranges[0].first * sizes.chunk)[0]
            for portion in file_chunks(raw.fileno(), 0, begun, sizes.chunk):
                self._feed(source, portion)
            for one in ranges:
                scanned = self._scanned_of(one, engine, sizes, source.bytes)
                source.pass_over(scanned.chunks, scanned.size, scanned.torn)
                self._within(source.bytes)
            for portion in file_chunks(raw.fileno(), source.bytes, None, sizes.chunk):
                self._feed(source, portion)
        source.finish()
        read.bytes, read.lines, read.cut = source.bytes, source.lines, source.cut
        return read

    def _feed(self, source: SourceReading, portion: bytes) -> None:
        source.feed(portion)
        self._within(source.bytes)
        self._scanned.update(self._ranges.pump())

    def _scanned_of(self, wanted: Range, engine: ScanEngine, sizes: ScanSizes, before: int) -> ScannedRange:
        """What was selected of a range; while others are busy with it, the next one is scanned here."""

        def within(read: int) -> None:
            self._within(before + read)
            self._scanned.update(self._ranges.pump())

        waiting, failed = self._ranges.waiting, self._ranges.failed
        self._scanned.update(self._ranges.pump())
        while wanted not in self._scanned:
            if failed or (waiting and (wanted == waiting[0] or len(self._scanned) < self._window)):
                one = failed.popleft() if failed else waiting.popleft()
                self._scanned[one] = scan_range(one, engine, sizes, within)
            else:
                self._ranges.wait()
                self._within(before)
            self._scanned.update(self._ranges.pump())
        return self._scanned.pop(wanted)
