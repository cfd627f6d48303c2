"""Read files for another process: run the jobs that it sends, and return their results."""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stallwatch_logs.file_reading import Engines, FileRead, Stopped, read_apart
from stallwatch_logs.inputs import Limits
from stallwatch_logs.log_files import LogFile, expand
from stallwatch_rules.decoding import from_msgpack
from stallwatch_rules.matching.database import DatabaseStore
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.scan.state import ScanSizes

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>


class Pages(NamedTuple):
    """The pages of a catalogue, in a form that can be sent to another process."""

    digest: str
    packed: bytes | ctypes.Array[ctypes.c_char]
    cache: Path | None  #: folder of the compiled patterns

    @classmethod
    def of(cls, catalogue: Catalogue) -> Pages:
        """Serialize the pages of a catalogue, so that all jobs can use the same bytes."""
        packed = msgspec.msgpack.encode(list(catalogue.pages.values()))
        return cls(hashlib.sha256(packed).hexdigest(), packed, catalogue.store.folder)

    def named(self) -> Pages:
        """Return a copy with only the digest, for a process that already has the pages themselves."""
        return self._replace(packed=b"")

    def shared(self) -> Pages:
        """Return a copy whose pages are in shared memory, for processes that are being started.

        Data for a new process is otherwise sent through a pipe. If the data does not fit into the pipe, this
        process would wait until the new process has started.
        """
        packed = bytes(self.packed)
        memory: Any = multiprocessing.get_context("spawn").RawArray(ctypes.c_char, len(packed))
        memory.raw = packed
        return self._replace(packed=memory)


class Wanted(NamedTuple):
    """A file that a job must read."""

    number: int  #: index among the run's files
    path: str
    name: str
    rank: int | None
    named_by_user: bool
    local_ranks: tuple[int, ...] = ()

    @classmethod
    def of(cls, number: int, file: LogFile) -> Wanted:
        """Return the entry for a file that another process can open by its path."""
        return cls(number, file.path, file.name, file.rank, file.named_by_user, file.local_ranks)


class Job(NamedTuple):
    """A job for another process: files to read one after another."""

    tasks: tuple[Wanted, ...]
    sizes: ScanSizes  #: limits on the amount of text that is read
    limits: Limits | None
    pages: Pages


class Helpers(NamedTuple):
    """Other processes that help this process to read files."""

    executor: Executor
    window: int  #: maximum number of jobs of the executor at a time
    pages: Pages  #: the rules, which are part of each job
    board: Board | None = None  #: receives the numbers of bytes that the processes have read
    here: bool = False  #: True if this process takes jobs, too


class Board:
    """The numbers of bytes that all processes have read so far, in shared memory.

    Each number is written by one process only, so no lock is needed.
    """

    def __init__(self, files: int, *, shared: bool = True) -> None:
        self._read: Any = [0] * files
        self._stop: Any = ctypes.c_byte()
        if shared:
            context = multiprocessing.get_context("spawn")
            self._read = context.RawArray(ctypes.c_longlong, max(files, 1))
            self._stop = context.RawValue(ctypes.c_byte, 0)

    def report(self, number: int, read: int) -> None:
        """Record how many bytes of a file were read; raise ``Stopped`` if all reading was stopped."""
        if self._stop.value:
            raise Stopped
        self._read[number] = read

    def read(self) -> list[int]:
        """Return how many bytes of each file have been read."""
        return list(self._read)

    def stop(self) -> None:
        """Make all processes stop reading after their current portion."""
        self._stop.value = 1


_lock = threading.Lock()
_engines: dict[str, Engines] = {}  # by the catalogue's digest; only the last catalogue is kept
_board: Board | None = None


def begin(pages: Pages, board: Board, engines: Engines | None) -> None:
    """Prepare a worker process: it ends with its parent process, and ignores interrupts.

    ``engines`` are the compiled patterns of a forked process, which need not be compiled again.
    """
    global _board  # the only place for objects that a pool prepares at its start
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    if engines is None:
        prepared(pages)
    else:
        _engines.clear()
        _engines[pages.digest] = engines
    _board = board


def read_away(job: Job) -> list[FileRead]:
    """Read the files of a job for another process; this function is the job that a worker runs."""
    engines = prepared(job.pages)
    return [_read(task, job, engines) for task in job.tasks]


def _read(wanted: Wanted, job: Job, engines: Engines) -> FileRead:
    board = _board

    def within(read: int) -> None:
        if board is not None:
            board.report(wanted.number, read)

    if job.limits is not None and job.limits.time_left == 0.0:
        return FileRead(None, out_of_time=True)
    found, problems = expand([wanted.path], limits=job.limits)
    if not found:  # the file was removed in the meantime
        return FileRead(None, problems=problems)
    file = replace(
        found[0],
        name=wanted.name,
        rank=wanted.rank,
        named_by_user=wanted.named_by_user,
        local_ranks=wanted.local_ranks,
    )
    return read_apart(file, engines, within, job.sizes)


def prepared(pages: Pages) -> Engines:
    """Return the compiled patterns for these pages, which a process compiles once for all its jobs."""
    with _lock:
        engines = _engines.get(pages.digest)
        if engines is None:
            if not pages.packed:
                raise LookupError("the rules were not handed over")
            store = DatabaseStore(pages.cache)
            rules: Iterable[RulePage] = from_msgpack(bytes(pages.packed), list[RulePage])
            engines = Engines.of(Matcher(Catalogue.of(rules, store=store)))
            _engines.clear()
            _engines[pages.digest] = engines
        return engines


def end_with_parent() -> None:
    """End this process when its parent ends, for any reason."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if not _request_death_signal():
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()
    elif not parent.is_alive():  # the parent ended before the request
        os._exit(1)


def _request_death_signal() -> bool:
    """Ask Linux to kill this process when its parent ends; return whether Linux accepted the request."""
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def _end_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
