"""The ring between a rank and its agent: no torn records, no silent loss, no effect on the rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stallwatch_exporter.probe.draft import FIRST, TIME, Draft
from stallwatch_exporter.probe.layout import (
    COUNTERS_AT,
    DRAFT_AT,
    FIELDS,
    HEADER_SIZE,
    Header,
    LayoutProblem,
    pack_header,
    record_struct,
    unpack_header,
)
from stallwatch_exporter.probe.ring import RingWriter
from stallwatch_exporter.rings.probing import Probing
from stallwatch_exporter.rings.reader import RingReader

NAN = float("nan")


class Writer(RingWriter):
    """Ring with records of two fields."""

    def __init__(self, tmp_path: Path, capacity: int) -> None:
        self.draft = Draft(2)
        super().__init__(
            tmp_path / "3-1-1.ring", self.draft, 3, 1, fields=("step", "loss"), capacity=capacity
        )

    def fill(self, values: list[float]) -> None:
        """Set the values of the draft."""
        for place, value in enumerate(values, FIRST):
            self.draft.cells[place] = value

    def record(self, now: float, values: list[float]) -> None:
        """Add a record of these values."""
        self.fill(values)
        self.write(now)
        self.fill([NAN, NAN])


def writer(tmp_path: Path, capacity: int = 8) -> Writer:
    return Writer(tmp_path, capacity)


def test_header_identifies_writer_and_fields(tmp_path: Path) -> None:
    header = RingReader(writer(tmp_path).path).header
    assert (header.rank, header.local_rank, header.pid) == (3, 1, os.getpid())
    assert header.fields == ("step", "loss")
    assert header.file_size == (tmp_path / "3-1-1.ring").stat().st_size


def test_header_has_room_for_all_fields() -> None:
    size = record_struct(FIELDS).size
    header = Header(size, 16, 0, 0, 1, 1.0, FIELDS)
    assert unpack_header(pack_header(header)) == header


def test_records_are_read_once_without_missing_values(tmp_path: Path) -> None:
    ring = writer(tmp_path)
    reader = RingReader(ring.path)
    ring.record(10.0, [1.0, NAN])
    ring.record(11.0, [2.0, 0.5])
    first = reader.read()
    assert [(each.time, each.values) for each in first.records] == [
        (10.0, {"step": 1.0}),
        (11.0, {"step": 2.0, "loss": 0.5}),
    ]
    assert first.lost == 0
    assert reader.read().records == []
    ring.record(12.0, [3.0, NAN])
    assert [each.values["step"] for each in reader.read().records] == [3.0]


def test_overwritten_unread_records_are_counted(tmp_path: Path) -> None:
    ring = writer(tmp_path, capacity=8)
    reader = RingReader(ring.path)
    for step in range(1, 21):
        ring.record(float(step), [float(step), NAN])
    batch = reader.read()
    steps = [each.values["step"] for each in batch.records]
    # The writer may be writing into the oldest slot at this moment.
    assert steps == [float(step) for step in range(14, 21)]
    assert batch.lost == 13
    assert len(steps) + batch.lost == 20


def test_records_overwritten_during_reading_are_discarded(tmp_path: Path) -> None:
    ring = writer(tmp_path, capacity=8)
    for step in range(1, 7):
        ring.record(float(step), [float(step), NAN])
    reader = RingReader(ring.path)
    slots = reader._slots

    def slow(first: int, last: int) -> bytes:
        data = slots(first, last)
        for step in range(7, 12):  # written during the read
            ring.record(float(step), [float(step), NAN])
        return data

    reader._slots = slow  # type: ignore[method-assign]
    batch = reader.read()
    assert [each.number for each in batch.records] == [5, 6]
    assert batch.lost == 4


def test_record_beyond_the_counter_is_not_read(tmp_path: Path) -> None:
    """A rank that is killed between record and counter may leave a torn record."""
    ring = writer(tmp_path)
    ring.record(1.0, [1.0, NAN])
    record_struct(("step", "loss")).pack_into(ring._map, HEADER_SIZE + 32, 2, 2.0, 2.0, NAN)
    assert [each.number for each in RingReader(ring.path).read().records] == [1]


def test_slot_with_a_wrong_number_counts_as_lost(tmp_path: Path) -> None:
    ring = writer(tmp_path)
    ring.record(1.0, [1.0, NAN])
    ring.record(2.0, [2.0, NAN])
    ring._map[HEADER_SIZE] = 77
    batch = RingReader(ring.path).read()
    assert [each.number for each in batch.records] == [2]
    assert batch.lost == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"STWRING\0",
        b"\0" * HEADER_SIZE,
        os.urandom(3 * HEADER_SIZE),
        pack_header(Header(32, 8, 0, 0, 1, 1.0, ("step", "loss"))),  # the records are missing
        pack_header(Header(8, 8, 0, 0, 1, 1.0, ("step", "loss"))) + bytes(8 * 8),  # the record size is wrong
    ],
    ids=["empty", "magic", "zeros", "junk", "cut", "contradiction"],
)
def test_invalid_ring_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "0-1-1.ring"
    path.write_bytes(content)
    with pytest.raises(LayoutProblem):
        RingReader(path)


def test_truncated_ring_does_not_break_the_reader(tmp_path: Path) -> None:
    ring = writer(tmp_path)
    reader = RingReader(ring.path)
    ring.record(1.0, [1.0, NAN])
    os.truncate(ring.path, HEADER_SIZE + 4)
    batch = reader.read()
    assert batch.records == [] and batch.lost == 1
    os.truncate(ring.path, COUNTERS_AT + 4)
    assert reader.read().records == []


def test_records_of_a_killed_rank_survive(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from stallwatch_exporter.probe.draft import Draft\n"
        "from stallwatch_exporter.probe.ring import RingWriter\n"
        "draft = Draft(1); ring = RingWriter(Path(sys.argv[1]), draft, 0, fields=('step',), capacity=8)\n"
        "for step in range(1, 4): draft.cells[2] = step; ring.write(float(step))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "0-9-9.ring"
    died = subprocess.run([sys.executable, "-c", code, str(path)], timeout=120)
    assert died.returncode == -signal.SIGKILL
    assert [each.values["step"] for each in RingReader(path).read().records] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("raise RuntimeError('out of it')", 1),
    ],
)
def test_counts_after_the_last_step_survive_the_rank(tmp_path: Path, end: str, status: int) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from stallwatch_exporter.probe.api import Probe\n"
        "probe = Probe(Path(sys.argv[1]), {'RANK': '0'}, lambda: 100.0)\n"
        "probe.step(loss=1.0)\n"
        f"for _ in range(7): probe.add('warnings')\n{end}\n"
    )
    died = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=120, stderr=subprocess.DEVNULL)
    assert died.returncode == status
    (record, pending) = Probing(tmp_path).read()
    assert (record.values["step"], "warnings" in record.values) == (1.0, False)
    assert (pending.values["warnings"], "step" in pending.values) == (7.0, False)


def test_step_without_a_record_is_read_from_the_draft_once(tmp_path: Path) -> None:
    ring = writer(tmp_path, capacity=8)
    reader = RingReader(ring.path, lambda: 99.0)
    ring.record(10.0, [1.0, NAN])
    reader.read()
    ring.draft.cells[TIME] = 11.0
    ring.fill([2.0, 0.5])
    (record,) = reader.read().records
    assert (record.number, record.time, record.values) == (2, 11.0, {"step": 2.0, "loss": 0.5})
    assert reader.read().records == []
    ring.record(12.0, [3.0, NAN])
    assert [(each.number, each.time) for each in reader.read().records] == [(2, 12.0)]
    ring.fill([NAN, 0.25])  # the loss of an unfinished step
    batch = reader.read()
    assert (batch.records, batch.lost) == ([], 0)


def test_draft_that_changes_during_reading_is_read_again(tmp_path: Path) -> None:
    ring = writer(tmp_path, capacity=8)
    reader = RingReader(ring.path)
    ring.record(1.0, [1.0, 0.5])
    reader.read()
    ring.fill([2.0, 0.5])  # the loss of the previous step
    at = reader._at

    def slow(offset: int, size: int) -> bytes:
        data = at(offset, size)
        if offset == DRAFT_AT:
            ring.fill([2.0, 0.25])
        return data

    reader._at = slow  # type: ignore[method-assign]
    assert [each.values for each in reader.read().records] == [{"step": 2.0, "loss": 0.25}]


def test_full_disk_leaves_no_ring(tmp_path: Path) -> None:
    """The disk blocks are allocated at once, so a full disk cannot end the rank with SIGBUS later."""
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from stallwatch_exporter.probe.ring import RingWriter\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        "from stallwatch_exporter.probe.draft import Draft\n"
        "try: RingWriter(Path(sys.argv[1]), Draft(), 0)\n"
        "except OSError as error: print(error.errno)\n"
    )
    path = tmp_path / "0-9-9.ring"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "27", done.stderr  # EFBIG
    assert list(tmp_path.iterdir()) == []
