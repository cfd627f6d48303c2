"""Run the jobs that another process sends: read files for that process and return the results."""

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

_DEATH_SIGNAL = 1  # value of PR_SET_PDEATHSIG in <sys/prctl.h>


class Pages(NamedTuple):
    """The pages of a catalogue in a form that can be sent to other processes."""

    digest: str
    packed: bytes | ctypes.Array[ctypes.c_char]
    cache: Path | None  #: folder with the compiled patterns

    @classmethod
    def of(cls, catalogue: Catalogue) -> Pages:
        """Serialize the pages of a catalogue. All jobs can use the same bytes."""
        packed = msgspec.msgpack.encode(list(catalogue.pages.values()))
        return cls(hashlib.sha256(packed).hexdigest(), packed, catalogue.store.folder)

    def named(self) -> Pages:
        """Return a copy that contains only the digest, for a process that already has the pages."""
        return self._replace(packed=b"")

    def shared(self) -> Pages:
        """Return a copy with the pages in shared memory, for processes that are about to start.

        Without shared memory, the data for a new process is sent through a pipe. If the data does not fit
        into the pipe, the current process waits until the new process has started.
        """
        packed = bytes(self.packed)
        memory: Any = multiprocessing.get_context("spawn").RawArray(ctypes.c_char, len(packed))
        memory.raw = packed
        return self._replace(packed=memory)


class Wanted(NamedTuple):
    """A file that a job must read."""

    number: int  #: index of the file among the files of the run
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
    """A job for another process: files that it reads one after another."""

    tasks: tuple[Wanted, ...]
    sizes: ScanSizes  #: limits on the amount of text that is read
    limits: Limits | None
    pages: Pages


class Helpers(NamedTuple):
    """Other processes that read files for the current process."""

    executor: Executor
    window: int  #: maximum number of jobs that the executor has at the same time
    pages: Pages  #: The rules. Each job contains them.
    #: board to which the processes report the numbers of bytes that they have read
    board: Board | None = None
    here: bool = False  #: True if the current process also takes jobs


class Board:
    """A record in shared memory of the number of bytes that the processes have read from each file.

    Each number is written by only one process, so no lock is needed.
    """

    def __init__(self, files: int, *, shared: bool = True) -> None:
        self._read: Any = [0] * files
        self._stop: Any = ctypes.c_byte()
        if shared:
            context = multiprocessing.get_context("spawn")
            self._read = context.RawArray(ctypes.c_longlong, max(files, 1))
            self._stop = context.RawValue(ctypes.c_byte, 0)

    def report(self, number: int, read: int) -> None:
        """Record the number of bytes read from a file. If all reading has been stopped, raise ``Stopped``."""
        if self._stop.value:
            raise Stopped
        self._read[number] = read

    def read(self) -> list[int]:
        """Return the number of bytes that have been read from each file."""
        return list(self._read)

    def stop(self) -> None:
        """Make all processes stop after their current portions."""
        self._stop.value = 1


_lock = threading.Lock()
_engines: dict[str, Engines] = {}  # patterns of only the last catalogue, keyed by its digest
_board: Board | None = None


def begin(pages: Pages, board: Board, engines: Engines | None) -> None:
    """Prepare a worker process. The worker exits with its parent process and ignores interrupts.

    If the process was forked, ``engines`` contains the compiled patterns, so the worker does not recompile
    them.
    """
    global _board  # global, because a pool can prepare objects for its jobs only in global variables
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    if engines is None:
        prepared(pages)
    else:
        _engines.clear()
        _engines[pages.digest] = engines
    _board = board


def read_away(job: Job) -> list[FileRead]:
    """Read the files of a job on behalf of another process. A worker runs this function as a job."""
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
    if not found:  # the file was removed after the run's files were found
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
    """Return the compiled patterns for these pages. A process compiles them once for all its jobs."""
    with _lock:
        engines = _engines.get(pages.digest)
        if engines is None:
            if not pages.packed:
                raise LookupError("the rules were not passed to the process")
            store = DatabaseStore(pages.cache)
            rules: Iterable[RulePage] = from_msgpack(bytes(pages.packed), list[RulePage])
            engines = Engines.of(Matcher(Catalogue.of(rules, store=store)))
            _engines.clear()
            _engines[pages.digest] = engines
        return engines


def end_with_parent() -> None:
    """Make this process exit when its parent exits, regardless of the reason."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if not _request_death_signal():
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()
    elif not parent.is_alive():  # the parent ended before the request
        os._exit(1)


def _request_death_signal() -> bool:
    """Request that Linux kill this process when its parent exits.

    Return whether Linux accepts the request.
    """
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def _end_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
