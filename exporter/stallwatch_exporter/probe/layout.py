"""Define the format of a ring file: a header of one page, followed by records of equal size.

A record consists of its number (1, 2, …), its Unix time, and one double for each field. NaN marks an unknown
field. If a reported value is itself NaN or infinite, such as a diverged loss, the field's bit is set in
``told_nan``. Record ``n`` is at position ``(n - 1) % capacity``. The writer writes the record before it
updates the counter of records in the header. Therefore, a record with a number greater than the counter is
not complete.

The draft is the record that is being filled. The draft is part of the header page. The probe stores every
count and every step in the draft immediately. Therefore, a reader sees these values before the record is
complete, and even after a rank is killed. The time of the draft is the time of the last step.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

MAGIC = b"STWRING\0"
VERSION = 2
HEADER_SIZE = 4096
LARGEST = float(1 << 53)  #: largest count: up to this value, a double holds every integer
LATEST = 250e9  #: greatest valid Unix time, before the last year that ``datetime`` supports
CAPACITY = 4096  #: Number of records. At one poll per second, no record is lost below 4,096 steps per second.

_HEAD = struct.Struct("<8sIIIIiiqd")
COUNTERS_AT = 128  #: Offset of four native unsigned 64-bit integers, each stored in one operation.
WRITTEN, DROPPED_RECORDS, DROPPED_EVENTS, FAULTS = range(4)
COUNTERS = struct.Struct("=4Q")
_NAMES_AT = 256
DRAFT_AT = 2048

#: Fields of one step, which are absent from the next record unless they are set again.
PASSING = (
    "told_nan",
    "step",
    "step_seconds",
    "tokens",
    "loss",
    "grad_norm",
    "learning_rate",
    "loss_scale",
)
#: Computed values, which can be infinite or NaN. All other fields are counts, times, or memory sizes.
COMPUTED = ("loss", "grad_norm", "learning_rate", "loss_scale")
#: Fields that keep their values until they are changed, so every record repeats them.
LASTING = (
    "phase",
    "batches",
    "epoch_batches",
    "own_seconds",
    "skipped_steps",
    "target_steps",
    "memory_allocated_bytes",
    "memory_reserved_bytes",
    "memory_peak_bytes",
    "resident_bytes",
    "allocation_retries",
    "out_of_memory",
    "invalidations_mismatch",
    "invalidations_short",
    "invalidations_external",
    "warnings",
    "beats",
    "epochs",
    "switches",
    "forwards",
)
#: In this order, the fields that hooks set in most steps share a cache line, and the fields ``loss`` to
#: ``skipped_steps``, which ``Probe.step`` sets, are adjacent.
FIELDS = LASTING[:4] + PASSING + LASTING[4:]
#: Names of the phases. The field ``phase`` contains an index into this tuple.
PHASES = ("init", "train", "eval", "save", "rollout", "weight-sync", "idle")


class Header(NamedTuple):
    """Header of a ring: its writer and its format."""

    record_size: int
    capacity: int
    rank: int
    local_rank: int
    pid: int
    started: float  #: Unix time at which the ring was created
    fields: Sequence[str]

    @property
    def file_size(self) -> int:
        """Length of the whole file in bytes."""
        return HEADER_SIZE + self.record_size * self.capacity


class LayoutProblem(ValueError):
    """Raised if the bytes are not a ring that this version can read."""


def record_struct(fields: Sequence[str]) -> struct.Struct:
    """Return the packed format of one record."""
    return struct.Struct(f"=q{1 + len(fields)}d")  # same byte order as the writer's memory


def pack_header(header: Header) -> bytes:
    """Return the header page of the file, with all counters at zero."""
    page = bytearray(HEADER_SIZE)
    names = "\n".join(header.fields).encode()
    if len(names) > DRAFT_AT - _NAMES_AT or DRAFT_AT + header.record_size > HEADER_SIZE:
        raise LayoutProblem("too many fields for the header")
    size, capacity, *writer, fields = header
    _HEAD.pack_into(page, 0, MAGIC, VERSION, size, capacity, len(fields), *writer)
    page[_NAMES_AT : _NAMES_AT + len(names)] = names
    return bytes(page)


def unpack_header(page: bytes) -> Header:
    """Return the header of a ring. Raises `LayoutProblem` if the bytes are not a header."""
    if len(page) < HEADER_SIZE:
        raise LayoutProblem("the file is shorter than a header")
    magic, version, size, capacity, count, rank, local_rank, pid, started = _HEAD.unpack_from(page)
    if magic != MAGIC:
        raise LayoutProblem("the file is not a ring")
    if version != VERSION:
        raise LayoutProblem(f"the ring has the unsupported version {version}")
    names = page[_NAMES_AT:DRAFT_AT].rstrip(b"\0").decode("utf-8", "replace").split("\n")
    header = Header(size, capacity, rank, local_rank, pid, started, tuple(names))
    if len(names) != count or size != record_struct(names).size or not 1 < capacity <= 1 << 16:
        raise LayoutProblem("the fields of the header contradict each other")
    if not 0 < pid < 1 << 31 or not 0 <= started < LATEST:
        raise LayoutProblem("the header has an invalid process ID or start time")
    return header
