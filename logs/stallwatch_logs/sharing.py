"""Shares a run's files, and the ranges of large ones, between this process and others.

What is selected of a section depends on nothing before it (``scan.state``), so another process can find it;
this one reads the beginning, the end and what was selected.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from stallwatch_logs.file_reading import Engines, FileRead, Within, in_time, read_apart, read_file
from stallwatch_logs.inputs import LATE, Limits, TimeIsUp, is_sparse
from stallwatch_logs.line_format import lead_of
from stallwatch_logs.log_files import LogFile
from stallwatch_logs.portions import broken_at, edge, file_chunks
from stallwatch_logs.small_files import Sizes
from stallwatch_logs.workers import (
    NO_PAGES,
    Board,
    Job,
    Pages,
    Range,
    ScannedRange,
    Wanted,
    read_away,
    scan_range,
)
from stallwatch_rules.lines.reader import MAX_LINE, LineReader
from stallwatch_rules.reading import RunReading
from stallwatch_rules.scan.heads import head_texts
from stallwatch_rules.scan.sources import UTF16_MARKS, SourceReading
from stallwatch_rules.scan.state import ScanSizes

BATCH = 16 * 1024 * 1024  #: bytes on disk that are handed over at once, if the files are small
_A_FILE = 32 * 1024  # what opening one costs, in bytes read
_PAUSE = 20  # times what a report took, until the next one
_EVERY = 0.1  # seconds between two looks at those who read, and two reports of the progress

Tasks = tuple[Wanted | Range, ...]


def ranges_of(file: LogFile, sizes: ScanSizes) -> list[Range]:
    """The sections of a file that others may scan: all but the first and those that reach into its end."""
    section = sizes.chunk * sizes.section
    if not file.plain or file.size < 2 * section or is_sparse(file.path):
        return []
    head = next(in_time(file.chunks([], []), FileRead(None)), b"")
    lead = lead_of(head)
    if not head or head[:2] in UTF16_MARKS or (lead is not None and lead.quoted):
        return []
    behind = (file.size - 2 * sizes.tail - MAX_LINE) // section
    numbers = range(1, behind)
    texts = head_texts(head[: sizes.chunk])
    return [Range(file.path, one * sizes.section, (one + 1) * sizes.section, lead, texts) for one in numbers]


def batches(
    files: Sequence[LogFile], ranges: Sequence[Range] = (), unread: Container[int] = ()
) -> list[Tasks]:
    """Those of the files that others can read, the largest first, small ones together.

    A large file that came last would keep one process busy alone. The files of the ``ranges`` are not read
    by others as a whole, and the ``unread`` ones by nobody.
    """
    found: list[list[Wanted]] = []
    held = BATCH
    split = {one.path for one in ranges}
    away = [
        (number, file)
        for number, file in enumerate(files)
        if file.path and file.path not in split and number not in unread
    ]
    for number, file in sorted(away, key=lambda one: -one[1].size):
        cost = file.size + _A_FILE
        if held + cost > BATCH:
            found.append([])
            held = 0
        found[-1].append(Wanted.of(number, file))
        held += cost
    return [*((one,) for one in ranges), *map(tuple, found)]


class Sharing:
    """Reads files here and by an executor, to which ``window`` of the ``jobs`` are handed at a time.

    With ``here``, this process reads the last files while others read the first, and the ranges that it needs
    next. It reads what they fail to read in any case, and everything if there is no executor. ``pages`` go
    with each job. Of ``unread`` files only the sizes are reported, or that there
    was no time to search them.
    """

    def __init__(
        self,
        files: Sequence[LogFile],
        engines: Engines,
        sizes: ScanSizes,
        on_bytes: Callable[[int], None],
        *,
        unread: Mapping[int, Sizes | None] = MappingProxyType({}),
        executor: Executor | None = None,
        window: int = 0,
        jobs: Sequence[Tasks] = (),
        board: Board | None = None,
        pages: Pages = NO_PAGES,
        limits: Limits | None = None,
        here: bool = False,
    ) -> None:
        self._files, self._unread = files, unread
        self._engines, self._sizes = engines, sizes
        self._board = board or Board(len(files), shared=False)
        self._on_bytes = on_bytes
        self._report_at = 0.0
        self._executor = executor  # none any more once it is broken
        self._window, self._here = window, here
        self._waiting = deque(jobs)
        self._running: dict[Future[list[FileRead | ScannedRange]], Tasks] = {}
        self._failed: deque[Tasks] = deque()
        self._done: dict[Wanted | Range, FileRead | ScannedRange] = {}  # until it is their turn
        self._pages, self._limits = pages, limits
        self._next_range: tuple[Range | None, Within] = None, lambda _: None  # and its progress, if read here
        self._ranges: dict[str, list[Range]] = {}
        for one in (task for tasks in jobs for task in tasks if isinstance(task, Range)):
            self._ranges.setdefault(one.path, []).append(one)
        self._shared = {task for tasks in jobs for task in tasks}

    def read(self, reading: RunReading) -> Iterator[tuple[LogFile, FileRead]]:
        """Read all files into the run's reading, in their order."""
        for number in self._unread:
            self._board.report(number, self._files[number].size)
        for number, file in enumerate(self._files):
            if number in self._unread:
                known = self._unread[number]
                out_of_time = known is None
                yield file, FileRead(None, *(known or (0, 0)), alike=not out_of_time, out_of_time=out_of_time)
                continue
            wanted, within = Wanted.of(number, file), self._within(number)
            if file.path in self._ranges:
                read = self._read_ranges(file, reading, within)
            elif wanted in self._shared:
                try:
                    read = self._result(wanted)  # type: ignore[assignment]
                except TimeIsUp:
                    read = FileRead(None, out_of_time=True)
                if read.reading is not None:
                    reading.merge(read.reading)
            else:
                read = read_file(file, reading, self._engines, within, self._sizes)
            self._board.report(number, file.size)
            self._report()
            yield file, replace(read, reading=None)
        self._report(always=True)

    def _result(self, task: Wanted | Range) -> FileRead | ScannedRange:
        """What was read of a file or range; while others are busy with it, another one is read here."""
        self._pump()
        while task not in self._done:
            if self._failed:
                self._read_here(self._failed.popleft())
            elif (tasks := self._to_read_here(task)) is not None:
                self._read_here(tasks)
            else:
                self._check_time()
                wait(self._running, timeout=_EVERY, return_when=FIRST_COMPLETED)
                self._report()
            self._pump()
        return self._done.pop(task)

    def _check_time(self) -> None:
        """Raise `TimeIsUp` if those who read had the time to see that it is."""
        until = None if self._limits is None else self._limits.until
        if until is not None and time.monotonic() >= until + LATE:
            raise TimeIsUp

    def _to_read_here(self, wanted: Wanted | Range) -> Tasks | None:
        """Take a job that is better read here than waited for."""
        if not self._waiting or not (self._here or self._executor is None):
            return None
        if isinstance(wanted, Wanted):
            return self._waiting.pop()
        # Of ranges only so many are kept until it is their turn.
        if wanted in self._waiting[0] or len(self._done) < self._window or not self._running:
            return self._waiting.popleft()
        return None

    def _pump(self) -> None:
        """Take what others have done, and hand further jobs to them."""
        for future in [future for future in self._running if future.done()]:
            tasks = self._running.pop(future)
            error = CancelledError() if future.cancelled() else future.exception()
            if error is None:
                self._take(tasks, future.result())
                continue
            if isinstance(error, BrokenExecutor):
                self._executor = None
            self._failed.append(tasks)
        while self._executor is not None and self._waiting and len(self._running) < self._window:
            try:
                job = Job(self._waiting[0], self._sizes, self._limits, self._pages)
                future = self._executor.submit(read_away, job)
            except (BrokenExecutor, OSError):
                self._executor = None
                break
            self._running[future] = self._waiting.popleft()

    def _take(self, tasks: Tasks, found: Sequence[FileRead | ScannedRange]) -> None:
        self._done.update(zip(tasks, found, strict=True))
        for task in tasks:
            if isinstance(task, Wanted):
                self._board.report(task.number, self._files[task.number].size)

    def _read_here(self, tasks: Tasks) -> None:
        self._take(tasks, [self._read_one(task) for task in tasks])

    def _read_one(self, task: Wanted | Range) -> FileRead | ScannedRange:
        if isinstance(task, Wanted):
            return read_apart(self._files[task.number], self._engines, self._within(task.number), self._sizes)
        engine = self._engines.scan()
        assert engine is not None, "without one there are no ranges"

        def within(read: int) -> None:
            if task == self._next_range[0]:
                self._next_range[1](read)
            self._pump()
            self._report()

        return scan_range(task, engine, self._sizes, within)

    def _forget(self, ranges: Collection[Range]) -> None:
        """Let nobody scan what of these is left."""
        self._waiting = deque(tasks for tasks in self._waiting if tasks[0] not in ranges)

    def _within(self, number: int) -> Within:
        def within(read: int) -> None:
            self._board.report(number, read)
            self._pump()
            self._report()

        return within

    def _report(self, *, always: bool = False) -> None:
        now = time.monotonic()
        if always or now >= self._report_at:
            read = self._board.read()
            # A compressed file counts by its size on disk, once it is read.
            self._on_bytes(sum(min(part, file.size) for part, file in zip(read, self._files, strict=False)))
            done = time.monotonic()
            self._report_at = done + max(_EVERY, _PAUSE * (done - now))

    def _read_ranges(self, file: LogFile, reading: RunReading, within: Within) -> FileRead:
        """Read a file of which others scan ranges."""
        sizes, ranges = self._sizes, self._ranges[file.path]
        read, lead = FileRead(None), ranges[0].lead
        head = next(in_time(file.chunks(read.problems, read.binary), read), b"")
        lines = LineReader(
            file.name, file.rank, broken_at(head), lead=lead, local_ranks=file.local_ranks
        ).look_ahead(head)
        source = SourceReading(reading, lines, self._engines.scan, sizes)

        def feed(portions: Iterator[bytes]) -> None:
            for portion in portions:
                file.limits.check_time()
                source.feed(portion)
                within(source.bytes)

        try:
            with Path(file.path).open("rb") as raw:
                begun = edge(raw.fileno(), ranges[0].first * sizes.chunk)[0]
                feed(file_chunks(raw.fileno(), 0, begun, sizes.chunk))
                for one in ranges:
                    file.limits.check_time()
                    self._next_range = one, lambda read: within(source.bytes + read)
                    scanned = self._result(one)
                    assert isinstance(scanned, ScannedRange)
                    source.pass_over(scanned.chunks, scanned.size, scanned.torn)
                    within(source.bytes)
                feed(file_chunks(raw.fileno(), source.bytes, None, sizes.chunk))
        except TimeIsUp:
            read.out_of_time = True
            self._forget(ranges)
        source.finish()
        read.bytes, read.lines, read.cut = source.bytes, source.lines, source.cut
        return read
