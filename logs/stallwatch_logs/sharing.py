"""Distribute the files of a run among the current process and other processes, which read them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from dataclasses import replace
from types import MappingProxyType

from stallwatch_logs.file_reading import Engines, FileRead, Within, read_apart, read_file
from stallwatch_logs.inputs import LATE, Limits, TimeIsUp
from stallwatch_logs.log_files import LogFile
from stallwatch_logs.small_files import Sizes
from stallwatch_logs.workers import Board, Helpers, Job, Wanted, read_away
from stallwatch_rules.reading import RunReading
from stallwatch_rules.scan.state import ScanSizes

BATCH = 16 * 1024 * 1024  #: number of bytes on disk that one job reads, if the files are small
_A_FILE = 32 * 1024  # cost of opening a file, as a number of bytes that could be read in the same time
_PAUSE = 20  # pause between two progress reports, as a multiple of the duration of a report
_EVERY = 0.1  # time, in seconds, between two checks of the other processes, and between two progress reports

Tasks = tuple[Wanted, ...]


def batches(files: Sequence[LogFile], unread: Container[int] = ()) -> list[Tasks]:
    """Combine files into batches, with the largest files first. Each batch is a job for another process.

    Files whose index is in ``unread`` are omitted. Large files come first because a large file at the end
    would occupy one process while the other processes wait.
    """
    found: list[list[Wanted]] = []
    held = BATCH
    away = [(number, file) for number, file in enumerate(files) if file.path and number not in unread]
    for number, file in sorted(away, key=lambda entry: -entry[1].size):
        cost = file.size + _A_FILE
        if held + cost > BATCH:
            found.append([])
            held = 0
        found[-1].append(Wanted.of(number, file))
        held += cost
    return [*map(tuple, found)]


class Sharing:
    """A reader that distributes the files of a run among the current process and its helpers.

    The helpers run the ``jobs``. The current process reads the files that are not in ``jobs``, and the
    files that the helpers fail to read. If the current process also runs jobs, it takes them from the end
    of the list, and the helpers take them from the beginning. For an ``unread`` file, the result is only
    the file's size, or the fact that there was no time to search the file.
    """

    def __init__(
        self,
        files: Sequence[LogFile],
        engines: Engines,
        sizes: ScanSizes,
        on_bytes: Callable[[int], None],
        *,
        unread: Mapping[int, Sizes | None] = MappingProxyType({}),
        helpers: Helpers | None = None,
        jobs: Sequence[Tasks] = (),
        limits: Limits | None = None,
    ) -> None:
        self._files, self._unread = files, unread
        self._engines, self._sizes = engines, sizes
        self._helpers = helpers  # ``None`` after the executor has failed
        board = None if helpers is None else helpers.board
        self._board = board or Board(len(files), shared=False)
        self._on_bytes = on_bytes
        self._report_at = 0.0
        self._waiting = deque(jobs)
        self._running: dict[Future[list[FileRead]], Tasks] = {}
        self._failed: deque[Tasks] = deque()
        self._done: dict[Wanted, FileRead] = {}  # results of files that were read before they were needed
        self._limits = limits
        self._shared = {task for tasks in jobs for task in tasks}

    def read(self, reading: RunReading) -> Iterator[tuple[LogFile, FileRead]]:
        """Read all files of a run and add the results to `reading`.

        Yield each file with its result, in the order of the files.
        """
        for number in self._unread:
            self._board.report(number, self._files[number].size)
        for number, file in enumerate(self._files):
            if number in self._unread:
                known = self._unread[number]
                out_of_time = known is None
                yield file, FileRead(None, *(known or (0, 0)), alike=not out_of_time, out_of_time=out_of_time)
                continue
            wanted, within = Wanted.of(number, file), self._within(number)
            if wanted in self._shared:
                try:
                    read = self._result(wanted)
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

    def _result(self, task: Wanted) -> FileRead:
        """Return the result of a file. While waiting for it, read another file in the current process.

        Raise `TimeIsUp` if the deadline has passed and the other processes have had time to stop.
        """
        self._pump()
        while task not in self._done:
            if self._failed:
                self._read_here(self._failed.popleft())
            elif self._waiting and (self._helpers is None or self._helpers.here):
                self._read_here(self._waiting.pop())
            else:
                until = None if self._limits is None else self._limits.until
                if until is not None and time.monotonic() >= until + LATE:
                    raise TimeIsUp
                wait(self._running, timeout=_EVERY, return_when=FIRST_COMPLETED)
                self._report()
            self._pump()
        return self._done.pop(task)

    def _pump(self) -> None:
        """Collect the results of jobs that other processes have finished, and submit more jobs to them."""
        for future in [future for future in self._running if future.done()]:
            tasks = self._running.pop(future)
            error = CancelledError() if future.cancelled() else future.exception()
            if error is None:
                self._take(tasks, future.result())
                continue
            if isinstance(error, BrokenExecutor):
                self._helpers = None
            self._failed.append(tasks)
        while self._helpers is not None and self._waiting and len(self._running) < self._helpers.window:
            try:
                job = Job(self._waiting[0], self._sizes, self._limits, self._helpers.pages)
                future = self._helpers.executor.submit(read_away, job)
            except (BrokenExecutor, OSError):
                self._helpers = None
                break
            self._running[future] = self._waiting.popleft()

    def _take(self, tasks: Tasks, found: Sequence[FileRead]) -> None:
        self._done.update(zip(tasks, found, strict=True))
        for task in tasks:
            self._board.report(task.number, self._files[task.number].size)

    def _read_here(self, tasks: Tasks) -> None:
        found = [
            read_apart(self._files[task.number], self._engines, self._within(task.number), self._sizes)
            for task in tasks
        ]
        self._take(tasks, found)

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
            # After a compressed file has been read, its size on disk is counted.
            self._on_bytes(sum(min(part, file.size) for part, file in zip(read, self._files, strict=False)))
            done = time.monotonic()
            self._report_at = done + max(_EVERY, _PAUSE * (done - now))
