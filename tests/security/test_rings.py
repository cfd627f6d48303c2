"""A rank, or whoever runs as its user, puts hostile files where the agent looks for what ranks say."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from pathlib import Path

import pytest

from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.probe.events import MOST_BYTES
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


def test_pipe_in_the_place_of_a_ring_or_side_file(tmp_path: Path, ring: Path) -> None:
    """Nobody writes to it, and nobody waits for that: the other ranks are read."""
    os.mkfifo(tmp_path / "9-9-9.ring")
    probing = Probing(tmp_path)
    probing.read()
    assert notes(probing) == 1
    ring.with_suffix(".jsonl").unlink()
    os.mkfifo(ring.with_suffix(".jsonl"))
    assert notes(Probing(tmp_path)) == 0


def test_side_file_that_never_ends_its_line(tmp_path: Path, ring: Path) -> None:
    """Of a hundred gigabytes without a line end, a megabyte is read, and not again at each look."""
    os.truncate(ring.with_suffix(".jsonl"), 100 * GIB)
    probing = Probing(tmp_path)
    tracemalloc.start()
    probing.read()
    assert notes(probing) == 1
    assert [notes(probing) for _ in range(3)] == [0, 0, 0]
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_side_file_with_countless_events(tmp_path: Path, ring: Path) -> None:
    """What is more than any probe writes is not read, and so is in no folder of a run either."""
    line = json.dumps({"kind": "note", "text": "x" * 1000}).encode() + b"\n"
    with ring.with_suffix(".jsonl").open("ab") as out:
        for _ in range(10):
            out.write(line * (MOST_BYTES // len(line)))
    probing = Probing(tmp_path)
    probing.read()
    assert 0 < sum(notes(probing) for _ in range(20)) * len(line) < 3 * MOST_BYTES


def test_ring_that_claims_to_hold_millions_of_records(tmp_path: Path, ring: Path) -> None:
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
