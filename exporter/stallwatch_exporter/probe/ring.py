"""Write a rank's records to a ring file. A write uses no locks, makes no system calls, and never waits.

All blocks of the file are allocated when the file is created. Otherwise, a full disk would end the training
with SIGBUS at the first write to a page without a block.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path

from .draft import Draft
from .layout import (
    CAPACITY,
    COUNTERS,
    COUNTERS_AT,
    DRAFT_AT,
    FIELDS,
    HEADER_SIZE,
    WRITTEN,
    Header,
    pack_header,
    record_struct,
)


class RingWriter:
    """Writer of records from `draft` to a new ring file at `path`.

    Raises `OSError` if it cannot create the file.
    """

    def __init__(
        self,
        path: Path,
        draft: Draft,
        rank: int,
        local_rank: int = -1,
        started: float | None = None,
        *,
        fields: Sequence[str] = FIELDS,
        capacity: int = CAPACITY,
    ) -> None:
        self._size = record_struct(fields).size
        started = time.time() if started is None else started
        header = Header(self._size, capacity, rank, local_rank, os.getpid(), started, fields)
        self.path = path
        self._map = _create(path, header)
        self._capacity = capacity
        self._all = memoryview(self._map)
        # One machine instruction stores each counter, so that a reader never sees a partly written number.
        self._counters = self._all[COUNTERS_AT : COUNTERS_AT + COUNTERS.size].cast("Q")
        self._draft = self._all[DRAFT_AT : DRAFT_AT + self._size]
        draft.move(self._draft)
        self._number = self._draft[:8].cast("q")
        self._time = self._draft[8:16].cast("d")
        self.written = 0

    def write(self, now: float) -> None:
        """Write the draft as a record, which replaces the oldest record if the ring is full."""
        written = self.written
        place = HEADER_SIZE + written % self._capacity * self._size
        self._number[0] = written = written + 1
        self._time[0] = now
        self._all[place : place + self._size] = self._draft
        self._counters[WRITTEN] = self.written = written

    def count(self, counter: int, total: int) -> None:
        """Set one of the header's counters, such as ``layout.DROPPED_EVENTS``."""
        self._counters[counter] = total


def _create(path: Path, header: Header) -> mmap.mmap:
    """Create the file at its full size and map it. The file gets its final name when it is complete."""
    unfinished = path.with_suffix(".new")
    fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _allocate(fd, header.file_size)
        mapped = mmap.mmap(fd, header.file_size)
        mapped[:HEADER_SIZE] = pack_header(header)
        unfinished.rename(path)
        return mapped
    except BaseException:
        unfinished.unlink()
        raise
    finally:
        os.close(fd)


def _allocate(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:  # on macOS, writing also allocates the blocks
        os.write(fd, bytes(size))
