"""Replay prints a recorded run again: same bytes, same order, same pace, same exit code."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.runs import replay as replaying
from stallwatch_exporter.runs.copies import RankCopies
from stallwatch_exporter.runs.replay import NoRecording, replay
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_rules.endings import Ending
from stallwatch_rules.stacks.records import StallStacks

PORTIONS = [
    (0.0, "stderr", b"\r  0%|          | 0/3"),
    (0.5, "stdout", b"[rank1]: one\r\n"),
    (2.0, "stderr", b"\r 33%|###       | 1/3"),
    (2.0, "stdout", b"[rank0]: zero\n[rank1]: again\n"),
    (8.0, "stderr", b"\nTraceback \xff\n"),
]


@pytest.fixture
def recording(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create("sft", [], home=tmp_path)
    writer = RankCopies(folder.path, str, pytest.fail)
    for seconds, stream, data in PORTIONS:
        writer.write(stream, stream, data, 1000.0 + seconds)
    writer.flush(1009.0, everything=True)
    folder.write_info(ended_at=1020.0, ending=Ending(kind="killed", exit_code=137, signal="SIGKILL"))
    return folder


class Clock:
    def __init__(self) -> None:
        self.now = 50.0
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(round(seconds, 3))
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def run(
    folder: Path, speed: float = 1.0, max_gap: float | None = None
) -> tuple[bytes, bytes, int, list[float]]:
    out, err, clock = io.BytesIO(), io.BytesIO(), Clock()
    code = replay(folder, speed, out=out, err=err, max_gap=max_gap, sleep=clock.sleep, clock=clock)
    return out.getvalue(), err.getvalue(), code, clock.waits


def test_each_stream_gets_its_original_bytes(recording: RunFolder) -> None:
    out, err, code, _ = run(recording.path)
    assert out == b"".join(data for _, stream, data in PORTIONS if stream == "stdout")
    assert err == b"".join(data for _, stream, data in PORTIONS if stream == "stderr")
    assert code == 137


def test_replay_keeps_the_original_pace(recording: RunFolder) -> None:
    assert run(recording.path)[3] == [0.5, 1.5, 6.0, 12.0]
    assert run(recording.path, speed=4)[3] == [0.125, 0.375, 1.5, 3.0]


def test_long_silences_can_be_shortened(recording: RunFolder) -> None:
    assert run(recording.path, max_gap=1.0)[3] == [0.5, 1.0, 1.0, 1.0]


def test_compressed_copies_and_foreign_lines_are_accepted(recording: RunFolder) -> None:
    plain = run(recording.path)
    log = recording.path / "output.log"
    with gzip.open(f"{log}.gz", "wb") as out:
        out.write(b"not a record\n" + log.read_bytes())
    log.unlink()
    assert run(recording.path) == plain


def test_folder_without_log_copies_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoRecording, match="contains no log copies"):
        replay(tmp_path, 1.0)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan")])
def test_invalid_speed_is_refused(recording: RunFolder, speed: float) -> None:
    with pytest.raises(ValueError, match="speed"):
        run(recording.path, speed=speed)


def test_log_copies_without_a_record_can_be_replayed(recording: RunFolder) -> None:
    (recording.path / "agent.json").unlink()
    assert run(recording.path)[2:] == (0, [0.5, 1.5, 6.0])


def test_ranks_have_stand_ins_throughout_each_stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that appear during a stall do not end them."""
    folder = RunFolder.create("sft", [], home=tmp_path)
    writer = RankCopies(folder.path, str, pytest.fail)
    for second in range(31):
        writer.write("stdout", "stdout", b"still here\n", 1000.0 + second)
    writer.flush(1031.0, everything=True)
    folder.write_info(ended_at=1032.0, ending=Ending(kind="failed", exit_code=1))
    first, last = StallStacks(1005.0, 0.1), StallStacks(1025.0, 0.1)
    for stacks, began, until in ((first, 1003.0, 1010.0), (last, 1020.0, None)):
        opened = {
            "id": f"sft/stall/silent-hang-no-error/{began}",
            "run": "sft",
            "kind": "stall",
            "rule": "silent-hang-no-error",
            "severity": "critical",
            "episode": 1,
            "opened_at": stacks.time,
            "stalled_seconds": stacks.time - began,
        }
        folder.append_incident(Incident(**opened, status="open", updated_at=stacks.time, stacks=stacks))
        if until is not None:
            closed = opened | {"stalled_seconds": until - began, "resolved_at": until, "updated_at": until}
            folder.append_incident(Incident(**closed, status="resolved", stacks=stacks))
    clock = Clock()
    spans: list[tuple[float, float, float]] = []

    @contextmanager
    def standing_in(stacks: StallStacks) -> Iterator[None]:
        start = clock.now
        yield
        spans.append((stacks.time, start - 50.0, clock.now - 50.0))

    monkeypatch.setattr(replaying, "is_watched", lambda: True)
    monkeypatch.setattr(replaying, "standing_in", standing_in)
    out = io.BytesIO()
    replay(folder.path, out=out, err=out, sleep=clock.sleep, clock=clock)
    assert spans == [(1005.0, 3.0, 10.0), (1025.0, 20.0, 32.0)]
