"""Processes that stand in for the ranks of a recorded stall answer with its stacks."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from stallwatch_exporter.rings.probing import with_probe
from stallwatch_exporter.runs import stand_ins
from stallwatch_exporter.runs.stand_ins import call, standing_in
from stallwatch_exporter.stacks.gathering import gather
from stallwatch_exporter.stacks.local_ranks import local_ranks
from stallwatch_rules.stacks.folding import fold
from stallwatch_rules.stacks.records import StackGroup, StallStacks

WAITS = [
    "/opt/train/train.py:42 in step",
    "/opt/venv/lib/python3.11/site-packages/torch/distributed/x.py:7 in wait",
]
STUCK = ["/opt/train/train.py:30 in main", "/opt/train/data.py:9 in Feeder.next"]
STACKS = StallStacks(
    0.0,
    0.1,
    [
        StackGroup([0], "collective", frames=WAITS),
        StackGroup([1], "code", frames=STUCK),
        StackGroup([2], "unknown", condition="ended", frames=STUCK),
        StackGroup([3], "code", frames=STUCK),
    ],
    pids={0: 1, 1: 2, 2: 3},
)


def test_generated_call_has_the_recorded_frames() -> None:
    def here() -> list[str]:
        frame, found = sys._getframe(1), []
        while frame is not None and len(found) < len(STUCK):
            name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
            found.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {name}")
            frame = frame.f_back
        return found[::-1]

    wanted = STUCK if sys.version_info >= (3, 11) else [item.replace("Feeder.", "") for item in STUCK]
    assert call(STUCK, here) == wanted


def test_agent_reads_the_recorded_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in with_probe(os.environ, tmp_path).items():
        monkeypatch.setenv(name, value)
    with standing_in(STACKS):
        end = time.monotonic() + 60
        while len(local_ranks(tmp_path, None)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        ranks = local_ranks(tmp_path, None)
        found = fold(gather(ranks), time=0.0)
        assert [rank.rank for rank in ranks] == [0, 1], "rank 2 had ended, rank 3 was on another host"
        assert (found.odd, found.why) == ([1], "elsewhere")
        assert [group.place for group in found.groups] == ["train.py:42 in step", "data.py:9 in Feeder.next"]
    assert all(local_rank.ended for local_rank in local_ranks(tmp_path, None)), "they end with the replay"


def test_failed_stand_in_does_not_end_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_ins, "own_main", lambda _name: [sys.executable, "-c", "import nowhere"])
    many = ["/opt/train/train.py:42 in step"] * 20_000  # more than a pipe holds
    with standing_in(StallStacks(0.0, 0.1, [StackGroup([0], "code", frames=many)], pids={0: 1})):
        pass
