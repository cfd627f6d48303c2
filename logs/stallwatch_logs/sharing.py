"""Shares a run's files between this process and others, and puts together what they read of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import replace

from stallwatch_logs.file_reading import Engines, FileRead, read_apart, read_file
from stallwatch_logs.inputs import Limits
from stallwatch_logs.log_files import LogFile
from stallwatch_logs.workers import Board, Job, Pages, Wanted, read_away
from stallwatch_rules.reading import RunReading
from stallwatch_rules.sieve.state import SieveSizes

BATCH = 16 * 1024 * 1024  #: bytes on disk that are handed over at once, if the files are small
_A_FILE = 32 * 1024  # what opening one costs, in bytes read
_EVERY = 0.1  # seconds between two reports of the progress


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
    where the executor's processes do not have them.
    """

    def __init__(
        self,
        files: Sequence[LogFile],
        executor: Executor,
        window: int,
        *,
        engines: Engines,
        sizes: SieveSizes,
        board: Board,
        on_bytes: Callable[[int], None],
        pages: Pages | None = None,
        digest: str,
        limits: Limits | None = None,
        here: bool = False,
    ) -> None:
        self._files = files
        self._executor: Executor | None = executor  # none any more once it is broken
        self._window = window
        self._engines, self._sizes = engines, sizes
        self._board = board
        self._on_bytes = on_bytes
        self._report_at = 0.0
        self._pages, self._digest, self._limits = pages, digest, limits
        self._here = here
        self._waiting = deque(batches(files))
        self._ours: deque[list[int]] = deque()  # those that the executor failed to read
        self._running: dict[Future[list[FileRead]], list[int]] = {}
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
        if self._ours:
            self._read_here(self._ours.popleft())
        elif self._waiting and (self._here or self._executor is None):
            self._read_here(self._waiting.pop())
        else:
            wait(self._running, timeout=_EVERY, return_when=FIRST_COMPLETED)
            self._report()

    def _pump(self) -> None:
        """Take what others have read and hand further batches to them."""
        for future in [future for future in self._running if future.done()]:
            self._take(future, self._running.pop(future))
        while self._executor is not None and self._waiting and len(self._running) < self._window:
            numbers = self._waiting[0]
            wanted = tuple(Wanted.of(number, self._files[number]) for number in numbers)
            try:
                future = self._executor.submit(
                    read_away, Job(wanted, self._sizes, self._limits, self._digest, self._pages)
                )
            except (BrokenExecutor, OSError):  # its processes died, or none can be started
                self._executor = None
                return
            self._running[future] = self._waiting.popleft()

    def _take(self, future: Future[list[FileRead]], numbers: list[int]) -> None:
        if future.cancelled() or (error := future.exception()) is not None:
            if not future.cancelled() and isinstance(error, BrokenExecutor):
                self._executor = None
            self._ours.append(numbers)
            return
        for number, read in zip(numbers, future.result(), strict=True):
            self._read[number] = read
            self._board.report(number, self._files[number].size)

    def _read_here(self, numbers: list[int]) -> None:
        for number in numbers:
            self._read[number] = read_apart(
                self._files[number], self._engines, self._within(number), self._sizes
            )

    def _within(self, number: int) -> Callable[[int], None]:
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
