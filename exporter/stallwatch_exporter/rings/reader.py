"""Read another process's ring: the new records, and the number of lost records.

The writer never waits for a reader, so records can be overwritten while they are read. Therefore, the reader
reads the counter again after the records. Records that the writer might have begun to overwrite before this
second read count as lost. The file is not mapped into memory, because a truncated mapping would end the
reader with SIGBUS.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from stallwatch_exporter.probe.layout import (
    COMPUTED,
    COUNTERS,
    COUNTERS_AT,
    DRAFT_AT,
    DROPPED_EVENTS,
    DROPPED_RECORDS,
    FAULTS,
    HEADER_SIZE,
    LARGEST,
    LATEST,
    PASSING,
    WRITTEN,
    Header,
    LayoutProblem,
    record_struct,
    unpack_header,
)
from stallwatch_exporter.steady import now

_MOST_TRIES = 3


class Record(msgspec.Struct, frozen=True):
    """Values from a rank at one moment. Fields that have no value are absent."""

    rank: int
    number: int
    time: float
    values: dict[str, float]


class Batch(msgspec.Struct):
    """New records since the last call to ``RingReader.read``, and the number of lost records."""

    records: list[Record] = []
    lost: int = 0  #: number of records overwritten before they were read


def open_file(path: Path) -> int:
    """Open a rank's file for reading. If the file is a pipe that has no writer, do not wait."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


class RingReader:
    """Reader of a ring. Raises `LayoutProblem` if the file is not a ring, or `OSError` if opening fails."""

    def __init__(self, path: Path, clock: Callable[[], float] = now) -> None:
        self.path = path
        self._clock = clock
        self._fd: int | None = open_file(path)
        try:
            self.header: Header = unpack_header(os.pread(self._fd, HEADER_SIZE, 0))
            if os.fstat(self._fd).st_size < self.header.file_size:
                raise LayoutProblem("the file is shorter than its header specifies")
        except BaseException:
            self.close()
            raise
        self._record = record_struct(self.header.fields)
        self._shown = b""  # bytes of the draft at the last call
        self._last = Record(self.header.rank, 0, 0.0, {})  # last record that was returned
        self.read_until = 0  #: number of the last record that was read or lost
        self.dropped_records = 0  #: number of records that the writer itself could not write
        self.dropped_events = 0
        self.faults = 0

    def read(self, most: int | None = None) -> Batch:
        """Return the records written since the last call, or only the newest `most` of them."""
        batch = Batch()
        with self._opened():
            written = self._written()
            if written is None:
                return batch
            if written > self.read_until:
                self._complete(batch, written)
            if batch.records:
                self._last = batch.records[-1]
            if most is not None:
                del batch.records[:-most]
            self._add_draft(batch)
        return batch

    def latest_step_at(self) -> float | None:
        """Return the time of the newest complete record, or ``None`` if the record contains no step."""
        with self._opened():
            written = self._written()
            latest = self._unpacked(self._slots(written, written), 0, written) if written else None
        return latest.time if latest is not None and "step" in latest.values else None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        """If the file is closed, open it for one call. A file that cannot be opened is treated as empty."""
        was_closed = self._fd is None
        with contextlib.suppress(OSError):  # The file was removed, or no descriptor is free. No data is lost.
            if was_closed:
                self._fd = open_file(self.path)
        try:
            yield
        finally:
            if was_closed:
                self.close()

    def _complete(self, batch: Batch, written: int) -> None:
        """Add records to the batch, up to the record with the number `written`."""
        capacity = self.header.capacity
        first = max(self.read_until + 1, written - capacity + 1)
        data = self._slots(first, written)
        now = self._written()
        if now is None:
            return
        # The writer might already be overwriting the record with the number `now + 1 - capacity`.
        intact = now + 2 - capacity
        for number in range(first, written + 1):
            record = self._unpacked(data, number - first, number) if number >= intact else None
            if record is None:
                batch.lost += 1
            else:
                batch.records.append(record)
        batch.lost += first - self.read_until - 1
        self.read_until = written

    def _add_draft(self, batch: Batch) -> None:
        """If the draft of the next record contains new values, add the draft to the batch."""
        data = self._at(DRAFT_AT, self._record.size)
        # Read the draft until two reads agree, because during an update, a draft can mix values of two steps.
        for _ in range(_MOST_TRIES):
            before, data = data, self._at(DRAFT_AT, self._record.size)
            if data == before:
                break
        if data == self._shown or len(data) < self._record.size or self._written() != self.read_until:
            return
        self._shown = data
        draft = self._unpacked(data, 0)
        if draft is None:
            return
        last = self._last
        step = draft.values.get("step")
        if step is None or (draft.time, step) == (last.time, last.values.get("step")):
            # The draft belongs to the next step, or to a step that was read as a record.
            draft = replace(draft, time=self._clock(), values=_lasting(draft.values))
            if draft.values == _lasting(last.values):
                return
        self._last = replace(draft, number=self.read_until + 1)
        batch.records.append(self._last)

    def close(self) -> None:
        """Close the file. Each later read opens the file temporarily."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None

    def _written(self) -> int | None:
        """Return the number of written records, or `None` if the file is too short for this counter."""
        data = self._at(COUNTERS_AT, COUNTERS.size)
        if len(data) < COUNTERS.size:
            return None
        counters = COUNTERS.unpack(data)
        self.dropped_records = counters[DROPPED_RECORDS]
        self.dropped_events = counters[DROPPED_EVENTS]
        self.faults = counters[FAULTS]
        return int(counters[WRITTEN])

    def _slots(self, first: int, last: int) -> bytes:
        """Return the bytes of records `first` to `last`, in order."""
        size, capacity = self.header.record_size, self.header.capacity
        begin, count = (first - 1) % capacity, last - first + 1
        straight = min(count, capacity - begin)
        data = self._at(HEADER_SIZE + begin * size, straight * size)
        if count > straight and len(data) == straight * size:
            data += self._at(HEADER_SIZE, (count - straight) * size)
        return data

    def _at(self, offset: int, size: int) -> bytes:
        with contextlib.suppress(OSError):
            if self._fd is not None:
                return os.pread(self._fd, size, offset)
        return b""

    def _unpacked(self, data: bytes, place: int, number: int | None = None) -> Record | None:
        """Return the record at index `place`, or ``None`` if it is incomplete or has a different number."""
        offset = place * self._record.size
        if len(data) < offset + self._record.size:
            return None
        found, time, *values = self._record.unpack_from(data, offset)
        if number not in (None, found) or not 0 <= time < LATEST:
            return None
        pairs = zip(self.header.fields, values, strict=True)
        known = {
            name: value
            for name, value in pairs
            if abs(value) <= LARGEST or (name in COMPUTED and not math.isnan(value))
        }
        marked = int(known.pop("told_nan", 0))
        for bit, name in enumerate(self.header.fields):
            if marked >> bit & 1 and name in COMPUTED and not math.isinf(known.get(name, 0.0)):
                known[name] = math.nan
        return Record(self.header.rank, found, time, known)


def _lasting(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if name not in PASSING}
