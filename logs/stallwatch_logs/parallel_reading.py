"""Read all files of a run, either one after another or in parallel.

The result for a file depends only on this file, and the results are combined in the order of the files.
Therefore, the result for a run does not depend on the number of processes.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from stallwatch_logs.file_reading import Engines, FileRead
from stallwatch_logs.inputs import InputProblem, Limits
from stallwatch_logs.log_files import LogFile, OnProgress, expand, on_bytes_read
from stallwatch_logs.sharing import Sharing, batches
from stallwatch_logs.small_files import survey
from stallwatch_logs.workers import Board, Helpers, Pages, begin
from stallwatch_rules.failures.unexplained import Baseline
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Verdict
from stallwatch_rules.scan.state import ScanSizes

OPENING = 8 * 1024  #: cost of opening a file, as a number of bytes that could be searched in the same time
WORTH_A_POOL = 160 * 1024 * 1024  #: minimum number of bytes on disk for which another process saves time
#: The corresponding minimum for a forked process. The number is lower, because a forked process loads
#: nothing.
WORTH_A_FORK = 32 * 1024 * 1024
MAX_WORKERS = 8
#: In this Python version and later, a pool forks all its processes for its first job. In earlier versions, a
#: pool forks the processes one by one while threads are running (python/cpython#90622).
FORKS_AT_ONCE = (3, 10, 5)

OnBytes = Callable[[int], None]  #: function that receives the number of bytes on disk that have been read


@dataclass(frozen=True)
class Parallel:
    """Options for reading files in parallel, in new processes or with an executor that the caller provides.

    Processes are spawned as in ``multiprocessing``. Therefore, a script that reads in parallel needs an
    ``if __name__ == "__main__":`` guard. On Linux, a caller can set ``may_fork`` if nothing else runs in this
    process. Processes are then forked. In contrast, a spawned process needs time to repeat all imports and
    loads.
    """

    workers: int = 1  #: number of processes, including the current process
    executor: Executor | None = None
    #: minimum number of bytes on disk for which processes are started, or ``None`` for the default
    worth: int | None = None
    may_fork: bool = False

    @property
    def forks(self) -> bool:
        """True if new processes are forked.

        This is safe only while the current process has a single thread.
        """
        if not self.may_fork or sys.platform != "linux" or sys.version_info < FORKS_AT_ONCE:
            return False
        return threading.active_count() == 1

    @property
    def least(self) -> int:
        """The minimum total size of the files, in bytes on disk, for which other processes are started."""
        if self.worth is not None:
            return self.worth
        return WORTH_A_FORK if self.forks else WORTH_A_POOL


def default_workers() -> int:
    """Return the number of available processors, limited to ``MAX_WORKERS``."""
    with contextlib.suppress(AttributeError, OSError):
        return min(MAX_WORKERS, len(os.sched_getaffinity(0)))
    return min(MAX_WORKERS, os.cpu_count() or 1)


def read_all(
    files: Sequence[LogFile],
    reading: RunReading,
    *,
    parallel: Parallel | None = None,
    on_bytes: OnBytes = lambda _read: None,
    whole: bool = False,
    limits: Limits | None = None,
) -> Iterator[tuple[LogFile, FileRead]]:
    """Read the files of a run in order and add the results to `reading`.

    Several processes are used if they save time. If ``whole`` is True, only the current process reads the
    files, and it reads every line.
    """
    parallel = parallel or Parallel()
    if whole:
        engines = Engines(reading.matcher, lambda: None)
        yield from Sharing(files, engines, ScanSizes(), on_bytes, limits=limits).read(reading)
        return
    engines = Engines.of(reading.matcher)
    read = functools.partial(_read, files, reading, engines, on_bytes, limits)
    if parallel.executor is not None:
        window = 2 * max(parallel.workers, MAX_WORKERS)
        yield from read(Helpers(parallel.executor, window, Pages.of(reading.catalogue)))
        return
    # A daemonic process is not allowed to start other processes.
    pays = sum(file.size + OPENING for file in files if file.path) >= parallel.least
    count = min(parallel.workers, sum(bool(file.path) for file in files)) - 1
    if count < 1 or not pays or multiprocessing.current_process().daemon:
        yield from read(None)
        return
    if (engine := engines.scan()) is not None:
        # The patterns are compiled before the other processes start, so that these processes can load the
        # result.
        engine.patterns.compile()
    pages, board = Pages.of(reading.catalogue), Board(len(files))
    # The current process also reads files because the other processes need time to start. Between two
    # portions, it submits the next job, so that no job waits for a busy process while another process is
    # idle.
    with _processes(count, pages, board, engines if parallel.forks else None) as pool:
        yield from read(None if pool is None else Helpers(pool, count, pages.named(), board, here=True))


def _read(
    files: Sequence[LogFile],
    reading: RunReading,
    engines: Engines,
    on_bytes: OnBytes,
    limits: Limits | None,
    helpers: Helpers | None,
) -> Iterator[tuple[LogFile, FileRead]]:
    """Read the large files.

    If there are many small files, read only the small files that a search selects.
    """
    found = survey(files, engines, limits, on_bytes, helpers)
    reading.alike = found.alike
    # Another process always reads a file as the log of a single start.
    away = () if helpers is None or reading.splits_starts else files
    shared = Sharing(
        files,
        engines,
        ScanSizes.of_run(file.size for number, file in enumerate(files) if number not in found.unread),
        on_bytes,
        unread=found.unread,
        helpers=helpers,
        jobs=batches(away, found.unread),
        limits=limits,
    )
    yield from shared.read(reading)


@contextlib.contextmanager
def _processes(count: int, pages: Pages, board: Board, engines: Engines | None) -> Iterator[Executor | None]:
    """Start a pool of processes that read files. The processes exit when the current process exits.

    If ``engines`` is given, the processes are forked. If the operating system cannot start all of them, the
    processes that were started are killed, and the result is ``None``.
    """
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        count,
        mp_context=multiprocessing.get_context("spawn" if engines is None else "fork"),
        initializer=begin,
        initargs=(pages.shared(), board, None) if engines is None else (pages, board, engines),
    )
    try:
        if engines is not None:
            # The pool forks when it receives its first job. This must happen before the caller starts a
            # thread that reports the progress.
            pool.submit(os.getpid)
    except BaseException as error:
        # The processes that were started wait for jobs that never arrive, and this process would wait for
        # them.
        for child in set(multiprocessing.active_children()) - before:
            child.kill()
            child.join()
        pool.shutdown(wait=False)
        if not isinstance(error, (OSError, RuntimeError)):
            raise
        yield None
        return
    try:
        yield pool
    except BaseException:
        board.stop()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


READ_WHOLE = 16 * 1024 * 1024  #: maximum number of bytes on disk to read line by line, which takes seconds


class Healthy(NamedTuple):
    """A run that the user expects to be healthy. Another run is compared with it."""

    baseline: Baseline
    verdict: Verdict  #: Verdict on the run. The verdict shows whether the run is in fact healthy.
    problems: list[InputProblem]


def read_baseline(
    paths: Sequence[str | os.PathLike[str]],
    *,
    catalogue: Catalogue,
    limits: Limits | None = None,
    parallel: Parallel | None = None,
    progress: OnProgress | None = None,
) -> Healthy:
    """Read a healthy run from files, folders, globs, and archives. Return its baseline and its verdict."""
    reading, problems = read_run(
        paths, catalogue=catalogue, limits=limits, parallel=parallel, progress=progress
    )
    baseline = Baseline.of(stream.templates for stream in reading.streams.values())
    return Healthy(baseline, reading.diagnose().verdict, problems)


def read_run(
    paths: Sequence[str | os.PathLike[str]],
    *,
    catalogue: Catalogue,
    limits: Limits | None = None,
    parallel: Parallel | None = None,
    progress: OnProgress | None = None,
) -> tuple[RunReading, list[InputProblem]]:
    """Read a run. Return two values: the `RunReading` of the run, and the problems.

    Use this function if the diagnosis alone is not sufficient.

    In a small run, every line is read. In a large run, the sampled scan skips lines that do not report a
    problem. A message that also occurs in skipped lines can therefore be reported as new.
    """
    files, problems = expand(paths, limits=limits)
    reading = RunReading(catalogue)
    whole = sum(file.size for file in files) <= READ_WHOLE
    report = on_bytes_read(progress, files)
    for _, read in read_all(files, reading, parallel=parallel, on_bytes=report, whole=whole, limits=limits):
        problems += read.problems
    return reading, problems
