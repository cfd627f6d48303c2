"""Reads log files into a run's reading, here or in other processes: a file each, put together in their order.

What a process made of a file belongs to that file alone, so the run's reading is the same as if one process
had read all of them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from stallwatch_exporter.inputs import InputProblem, Limits
from stallwatch_exporter.logfiles import LogFile, expand
from stallwatch_rules.catalogue import Catalogue
from stallwatch_rules.database import DatabaseStore
from stallwatch_rules.lines import LineReader
from stallwatch_rules.matcher import Matcher
from stallwatch_rules.page import RulePage
from stallwatch_rules.reading import Parted, RunReading
from stallwatch_rules.sieve import SieveEngine
from stallwatch_rules.sieve_engine import sieve_engine
from stallwatch_rules.sourcereading import SourceReading
from stallwatch_rules.wrapped import wrap_width

WORTH_A_POOL = 96 * 1024 * 1024  #: bytes on disk; starting a process costs as much as reading some of them
MAX_WORKERS = 8


@dataclass(frozen=True)
class Parallel:
    """How files may be read at once: by processes of our own, or by whatever executor there is.

    Processes are started as ``multiprocessing`` does it, so a script that asks for them needs a
    ``if __name__ == "__main__":``.
    """

    workers: int = 1
    executor: Executor | None = None
    limits: Limits | None = None
    worth: int = WORTH_A_POOL  #: bytes on disk from which on processes are started


Within = Callable[[LogFile, int], None]  # told how many bytes of a file were read


_PASTED = 256 * 1024  # what was copied from a terminal, its lines broken at the width, is shorter


@dataclass
class FileRead:
    """What was read of one file."""

    reading: Parted | None  #: of this file alone; ``None`` where it went into the run's own
    bytes: int = 0
    lines: int = 0
    cut: int = 0  #: lines that were longer than what is kept of one
    problems: list[InputProblem] = field(default_factory=list)


def read_file(
    file: LogFile,
    reading: RunReading,
    engine: Callable[[], SieveEngine | None],
    within: Within = lambda _file, _read: None,
) -> FileRead:
    """Read a file into a reading."""
    read = FileRead(None)
    chunks = file.chunks(read.problems)
    first = next(chunks, b"")
    width = wrap_width(first) if len(first) < _PASTED else None
    source = SourceReading(reading, LineReader(file.name, file.rank, width), engine)
    for chunk in itertools.chain((first,) if first else (), chunks):
        source.feed(chunk)
        within(file, source.bytes)
    source.finish()
    read.bytes, read.lines, read.cut = source.bytes, source.lines, source.cut
    return read


def read_all(
    files: Sequence[LogFile],
    reading: RunReading,
    *,
    parallel: Parallel | None = None,
    within: Within = lambda _file, _read: None,
) -> Iterator[tuple[LogFile, FileRead]]:
    """Read the files into a run's reading, in their order; several at once where that pays."""
    parallel = parallel or Parallel()
    executor, workers, limits = parallel.executor, parallel.workers, parallel.limits
    engine = functools.cache(lambda: sieve_engine(reading.matcher))
    away = [file for file in files if file.path]
    if executor is None and (
        workers < 2 or len(away) < 2 or sum(file.size for file in away) < parallel.worth
    ):
        for file in files:
            yield file, read_file(file, reading, engine, within)
        return
    with contextlib.ExitStack() as stack:
        if executor is None:
            executor = stack.enter_context(_processes(min(workers, len(away))))
        begun: dict[str, Future[FileRead]] = {}
        pages = msgspec.msgpack.encode(list(reading.catalogue.pages.values()))
        for file in sorted(
            away, key=lambda file: -file.size
        ):  # a large one last would keep one process alone
            begun[file.path] = executor.submit(read_away, _job(file, reading.catalogue, pages, limits))
        for file in files:
            if not file.path:
                yield file, read_file(file, reading, engine, within)
                continue
            read = begun.pop(file.path).result()
            if read.reading is not None:
                reading.merge(read.reading)
            yield file, replace(read, reading=None)


def default_workers() -> int:
    """As many as there are processors for us, within reason."""
    with contextlib.suppress(AttributeError, OSError):
        return min(MAX_WORKERS, len(os.sched_getaffinity(0)))
    return min(MAX_WORKERS, os.cpu_count() or 1)


class Job(NamedTuple):
    """A file for another process to read."""

    path: str
    name: str
    rank: int | None
    asked_for: bool
    limits: Limits | None
    pages: bytes  #: the catalogue
    cache: Path | None  #: where its patterns lie compiled


def read_away(job: Job) -> FileRead:
    """Read a file in this process, for another one."""
    matcher, engine = _prepared(job.pages, job.cache)
    found, problems = expand([job.path], limits=job.limits)
    if not found:
        return FileRead(None, problems=problems)
    file = replace(found[0], name=job.name, rank=job.rank, asked_for=job.asked_for)
    reading = RunReading(matcher.catalogue, matcher)
    read = read_file(file, reading, engine)
    return replace(read, reading=reading.parted())


def _job(file: LogFile, catalogue: Catalogue, pages: bytes, limits: Limits | None) -> Job:
    return Job(file.path, file.name, file.rank, file.asked_for, limits, pages, catalogue.store.folder)


@functools.lru_cache(maxsize=2)
def _prepared(pages: bytes, cache: Path | None) -> tuple[Matcher, Callable[[], SieveEngine | None]]:
    """The compiled patterns, once for all files of a process."""
    store = DatabaseStore(cache)
    matcher = Matcher(Catalogue.of(msgspec.msgpack.decode(pages, type=list[RulePage]), store=store))
    return matcher, functools.cache(lambda: sieve_engine(matcher))


@contextlib.contextmanager
def _processes(count: int) -> Iterator[Executor]:
    """Processes of our own, which an interrupt ends at once and without a word."""
    pool = ProcessPoolExecutor(
        count, mp_context=multiprocessing.get_context("spawn"), initializer=_leave_interrupts
    )
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _leave_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
