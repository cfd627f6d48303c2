"""Reads all of a run's files: one after the other, or several at once.

What is made of a file belongs to that file alone, and is put together in the files' order, so the run's
reading is the same as if one process had read all of them.
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
from stallwatch_logs.workers import NO_PAGES, Board, Pages, begin
from stallwatch_rules.failures.unexplained import Baseline
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Verdict
from stallwatch_rules.scan.state import ScanSizes

OPENING = 8 * 1024  #: bytes that could be searched while a file is opened
WORTH_A_POOL = 160 * 1024 * 1024  #: bytes on disk; below it a process costs more to start than it saves
WORTH_A_FORK = 32 * 1024 * 1024  #: the same of one that need not load anything
MAX_WORKERS = 8
#: From this Python on a pool forks all its processes with its first job, and not one by one while threads run
#: (python/cpython#90622).
FORKS_AT_ONCE = (3, 10, 5)

OnBytes = Callable[[int], None]  #: how many bytes on disk were read so far


@dataclass(frozen=True)
class Parallel:
    """How files may be read at once: by processes of our own, or by whatever executor there is.

    Processes are spawned as ``multiprocessing`` does it, so a script that asks for them needs a
    ``if __name__ == "__main__":``. On Linux, who says that this process ``may_fork``, as nothing else runs in
    it, saves what a process takes to load everything anew.
    """

    workers: int = 1  #: this process included
    executor: Executor | None = None
    #: bytes on disk from which on processes are started, where that is not the usual
    worth: int | None = None
    may_fork: bool = False

    @property
    def forks(self) -> bool:
        """Whether processes are forked: what a thread holds at that moment would stay held in them."""
        if not self.may_fork or sys.platform != "linux" or sys.version_info < FORKS_AT_ONCE:
            return False
        return threading.active_count() == 1

    @property
    def least(self) -> int:
        """Bytes on disk from which on processes are started."""
        if self.worth is not None:
            return self.worth
        return WORTH_A_FORK if self.forks else WORTH_A_POOL


def default_workers() -> int:
    """As many as there are processors for us, within reason."""
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
    """Read the files into a run's reading, in their order; several at once where that pays.

    With ``whole`` this process reads every line, without sampling.
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
        yield from read(executor=parallel.executor, window=window, pages=Pages.of(reading.catalogue))
        return
    # A daemonic process may start none.
    pays = sum(file.size + OPENING for file in files if file.path) >= parallel.least
    helpers = min(parallel.workers, sum(bool(file.path) for file in files)) - 1
    if helpers < 1 or not pays or multiprocessing.current_process().daemon:
        yield from read()
        return
    if (engine := engines.scan()) is not None:
        engine.patterns.compile()  # here, so that the others only load it
    pages, board = Pages.of(reading.catalogue), Board(len(files))
    # This process reads, too: it is ready while the others still start. Between two portions it hands out the
    # next job, so none need lie with a process that is busy while another one has nothing left to do.
    with _processes(helpers, pages, board, engines if parallel.forks else None) as pool:
        yield from read(executor=pool, window=helpers, board=board, pages=pages.named(), here=True)


def _read(
    files: Sequence[LogFile],
    reading: RunReading,
    engines: Engines,
    on_bytes: OnBytes,
    limits: Limits | None,
    *,
    executor: Executor | None = None,
    window: int = 0,
    board: Board | None = None,
    pages: Pages = NO_PAGES,
    here: bool = False,
) -> Iterator[tuple[LogFile, FileRead]]:
    """Search the small files, if there are many, and read those that are chosen and all large ones."""
    found = survey(files, engines, limits, on_bytes, executor=executor, window=window, pages=pages)
    reading.alike = found.alike
    # What others read of a file is of one start.
    away = () if executor is None or reading.splits_starts else files
    shared = Sharing(
        files,
        engines,
        ScanSizes.of_run(file.size for number, file in enumerate(files) if number not in found.unread),
        on_bytes,
        unread=found.unread,
        executor=executor,
        window=window,
        jobs=batches(away, found.unread),
        board=board,
        pages=pages,
        limits=limits,
        here=here,
    )
    yield from shared.read(reading)


@contextlib.contextmanager
def _processes(
    count: int, pages: Pages, board: Board, engines: Engines | None = None
) -> Iterator[Executor | None]:
    """Processes of our own, which give up at once when this one does, and without a word.

    With ``engines`` they are forked: all of them or, where the system refuses one or its thread, none.
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
            # It forks with its first job: now, before somebody starts a thread to report the progress.
            pool.submit(os.getpid)
    except BaseException as error:
        # Those that were started wait for jobs that nobody hands them, and this process for their end.
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


READ_WHOLE = 16 * 1024 * 1024  #: bytes on disk; line by line that is a matter of seconds


class Healthy(NamedTuple):
    """A run to compare with."""

    baseline: Baseline
    verdict: Verdict  #: whether it is healthy indeed
    problems: list[InputProblem]


def read_baseline(
    paths: Sequence[str | os.PathLike[str]],
    *,
    catalogue: Catalogue,
    limits: Limits | None = None,
    parallel: Parallel | None = None,
    progress: OnProgress | None = None,
) -> Healthy:
    """Read a healthy run's files, folders, globs and archives."""
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
    """Read a run as for its diagnosis, for those who need more of it than that.

    Every line of a small one is read; of a large one the sampled scan leaves out lines that say nothing is
    wrong, so that a message which only its middle has may be taken for unknown.
    """
    files, problems = expand(paths, limits=limits)
    reading = RunReading(catalogue)
    whole = sum(file.size for file in files) <= READ_WHOLE
    report = on_bytes_read(progress, files)
    for _, read in read_all(files, reading, parallel=parallel, on_bytes=report, whole=whole, limits=limits):
        problems += read.problems
    return reading, problems
