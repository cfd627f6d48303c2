"""A rank, or another process of its user, puts hostile files where the agent looks for reports of ranks."""

from __future__ import annotations

import json
import math
import os
import struct
import time
import tracemalloc
from pathlib import Path

import pytest

from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.probe.draft import FIRST, Draft
from stallwatch_exporter.probe.events import MOST_BYTES
from stallwatch_exporter.probe.layout import COMPUTED, FIELDS, Header, pack_header, record_struct
from stallwatch_exporter.probe.ring import RingWriter
from stallwatch_exporter.rings.probing import Probing

GIB = 1 << 30


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    """The ring of a probe, whose side file has one event."""
    probe = Probe(tmp_path, {"RANK": "3"})
    probe.announce()
    probe.event("note", text="hello")
    (path,) = tmp_path.glob("*.ring")
    return path


def notes(probing: Probing) -> int:
    return sum(event.get("kind") == "note" for event in probing.events())


def test_pipe_in_place_of_a_ring_or_side_file_does_not_block(tmp_path: Path, ring: Path) -> None:
    """It has no writer and is not awaited: the other ranks are read."""
    os.mkfifo(tmp_path / "9-9-9.ring")
    probing = Probing(tmp_path)
    probing.read()
    assert notes(probing) == 1
    ring.with_suffix(".jsonl").unlink()
    os.mkfifo(ring.with_suffix(".jsonl"))
    assert notes(Probing(tmp_path)) == 0


def test_side_file_with_an_endless_line_is_bounded(tmp_path: Path, ring: Path) -> None:
    """Of a hundred gigabytes without a line end, a megabyte is read, and not again at each look."""
    os.truncate(ring.with_suffix(".jsonl"), 100 * GIB)
    probing = Probing(tmp_path)
    tracemalloc.start()
    probing.read()
    assert notes(probing) == 1
    assert [notes(probing) for _ in range(3)] == [0, 0, 0]
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_side_file_with_countless_events_is_bounded(tmp_path: Path, ring: Path) -> None:
    """Data beyond what any probe writes is not read, and so is in no run folder either."""
    line = json.dumps({"kind": "note", "text": "x" * 1000}).encode() + b"\n"
    with ring.with_suffix(".jsonl").open("ab") as out:
        for _ in range(10):
            out.write(line * (MOST_BYTES // len(line)))
    probing = Probing(tmp_path)
    probing.read()
    assert 0 < sum(notes(probing) for _ in range(20)) * len(line) < 3 * MOST_BYTES


def test_ring_that_claims_millions_of_records_is_ignored(tmp_path: Path, ring: Path) -> None:
    """A header that asks for gigabytes is that of no ring, however large the file is."""
    data = bytearray(ring.read_bytes())
    capacity = struct.pack("<I", 4096)
    at = data.index(capacity)
    data[at : at + 4] = struct.pack("<I", 1 << 24)
    ring.write_bytes(data)
    os.truncate(ring, 100 * GIB)
    probing = Probing(tmp_path)
    assert probing.read() == []
    assert probing.ranks_up() == {}


def write_ring(folder: Path, rank: int, values: dict[str, float], at: float = 5.0) -> Path:
    """Write a ring with one record of these values, made at that time."""
    draft = Draft()
    ring = RingWriter(folder / f"{rank}-1-1.ring", draft, rank)
    for name, value in values.items():
        draft.cells[FIRST + FIELDS.index(name)] = value
    ring.write(at)
    return ring.path


def looked_at(folder: Path) -> tuple[Probing, dict[int, dict[str, float]]]:
    """Read a folder with all that the agent asks of its rings; also the values of each rank."""
    probing = Probing(folder)
    records = {record.rank: record.values for record in probing.read()}
    list(probing.events())
    probing.just_left()
    probing.ranks_up()
    probing.exit_codes()
    probing.ends()
    return probing, records


@pytest.mark.parametrize("pid", [0, -1, -(2**63), 2**31, 2**63 - 1])
def test_ring_of_an_impossible_process_does_not_hide_others(tmp_path: Path, pid: int) -> None:
    """Queries about such a process raise errors; its ring is ignored, and the next rank's is read."""
    bad = write_ring(tmp_path, 3, {"step": 7.0})
    header = Header(record_struct(FIELDS).size, 4096, 3, -1, pid, time.time(), FIELDS)
    bad.write_bytes(pack_header(header)[:128] + bad.read_bytes()[128:])
    write_ring(tmp_path, 5, {"step": 8.0})
    probing, records = looked_at(tmp_path)
    assert records == {5: {"step": 8.0}}
    assert list(probing.ranks_up()) == [5]


@pytest.mark.parametrize("started", [math.inf, -math.inf, math.nan, -1.0, 1e300])
def test_ring_with_an_impossible_time_does_not_hide_others(tmp_path: Path, started: float) -> None:
    RingWriter(tmp_path / "3-1-1.ring", Draft(), 3, started=started)
    write_ring(tmp_path, 5, {"step": 8.0})
    assert looked_at(tmp_path)[1] == {5: {"step": 8.0}}


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("name", [name for name in FIELDS if name not in COMPUTED])
def test_count_beyond_all_numbers_is_unknown(tmp_path: Path, name: str, value: float) -> None:
    """No whole number can be made of it; the rest of the record is read, and the next rank's ring."""
    write_ring(tmp_path, 3, {name: value, "loss": 2.0})
    write_ring(tmp_path, 5, {"step": 8.0})
    assert looked_at(tmp_path)[1] == {3: {"loss": 2.0}, 5: {"step": 8.0}}


def test_count_cannot_be_marked_as_not_a_number(tmp_path: Path) -> None:
    """Each field has its mark, and a rank sets them all: only what it computes may really be NaN."""
    marks = float((1 << len(FIELDS)) - 1)
    write_ring(tmp_path, 3, {"told_nan": marks, "step": 7.0, "target_steps": 9.0, "loss": math.inf})
    values = looked_at(tmp_path)[1][3]
    assert {name for name, value in values.items() if math.isnan(value)} == {*COMPUTED} - {"loss"}
    assert (values["step"], values["target_steps"], values["loss"]) == (7.0, 9.0, math.inf)


@pytest.mark.parametrize("at", [math.inf, math.nan, -1.0, 1e300])
def test_record_with_an_impossible_time_is_dropped(tmp_path: Path, at: float) -> None:
    write_ring(tmp_path, 3, {"step": 7.0}, at)
    write_ring(tmp_path, 5, {"step": 8.0})
    assert looked_at(tmp_path)[1] == {5: {"step": 8.0}}


@pytest.mark.parametrize(
    "value",
    ["[" * 900 + "]" * 900, "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900],
    ids=["lists", "cut", "maps"],
)
def test_nested_side_file_does_not_hide_others(tmp_path: Path, value: str) -> None:
    """Masking recurses into the nesting; such an event is ignored, and all others are read."""
    for rank in (3, 5):
        note = f'{{"kind": "note", "text": "of {rank}"}}\n'
        deep = f'{{"kind": "note", "deep": {value}}}\n' if rank == 3 else ""
        write_ring(tmp_path, rank, {"step": 7.0}).with_suffix(".jsonl").write_text(deep + note)
    probing = Probing(tmp_path)
    probing.read()
    assert [event.get("text") for event in probing.events()] == ["of 3", "of 5"]
