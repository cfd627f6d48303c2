"""Checkpoints that ranks report: a broken checkpoint is reported once it is certain, not during the write."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stallwatch_exporter.checkpoints import checking
from stallwatch_exporter.checkpoints.checking import FolderContent, check_checkpoint
from stallwatch_exporter.checkpoints.formats import Fault
from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.rings.probing import Probing
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.watching.agent import Agent
from stallwatch_exporter.watching.checkpoints import (
    PATIENCE_SECONDS,
    SETTLED_SECONDS,
    SURE_SECONDS,
    CheckpointWatch,
)
from stallwatch_rules.endings import Ending

EMPTY, CORRUPT = "zero3-empty-state-dict", "checkpoint-archive-corrupt"


def weights(path: Path, shape: list[int], cut: int = 0) -> Path:
    """Write a safetensors file with one tensor, without its last `cut` bytes."""
    size = 4 * (shape[0] if shape else 1)
    header = json.dumps({"head.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(size)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data[: len(data) - cut])
    return path


@pytest.fixture
def watch_here() -> CheckpointWatch:
    """Return a watch that checks at once instead of in a thread."""
    return CheckpointWatch(begin=lambda job: job())


def save_event(path: Path) -> dict[str, Any]:
    return {"kind": "checkpoint", "rank": 0, "time": 1.0, "path": str(path)}


def seen(watched: CheckpointWatch, *times: float) -> list[str]:
    """Return the rules that the watch reports at these times."""
    return [match.rule for now in times for match in watched.look(now)]


def test_empty_tensors_are_reported_after_two_checks(watch_here: CheckpointWatch, tmp_path: Path) -> None:
    file = weights(tmp_path / "model.safetensors", [0])
    watch_here.take(save_event(file), 7, 0.0)
    sure = SETTLED_SECONDS + SURE_SECONDS + 2
    assert seen(watch_here, 1.0, SETTLED_SECONDS, SETTLED_SECONDS + 1, sure - 1) == []
    (match,) = watch_here.look(sure)
    assert (match.rule, match.line.number, match.line.rank) == (EMPTY, 7, 0)
    assert str(file) in match.line.text and "head.weight" in match.line.text
    watch_here.take(save_event(file), 8, sure)
    assert seen(watch_here, *range(int(sure), int(sure) + 200)) == []  # the rule was reported before


def test_file_that_is_still_being_written_is_not_reported(
    watch_here: CheckpointWatch, tmp_path: Path
) -> None:
    file = weights(tmp_path / "model.safetensors", [100], cut=30)
    watch_here.take(save_event(file), 1, 0.0)
    assert seen(watch_here, SETTLED_SECONDS, SETTLED_SECONDS + 1) == []
    weights(file, [100])
    assert seen(watch_here, *range(12, 200)) == []


@pytest.fixture
def saved_slowly(tmp_path: Path) -> tuple[Path, Callable[[], bool]]:
    """Yield the path of a ``torch.save`` and a function that writes its next piece: false after the last."""
    whole = io.BytesIO()
    torch.save({"head.weight": torch.zeros(1000)}, whole)
    pieces = [whole.getvalue()[at : at + 500] for at in range(0, len(whole.getvalue()), 500)]
    file = (tmp_path / "checkpoint.pt").open("wb", buffering=0)

    def write() -> bool:
        if pieces:
            file.write(pieces.pop(0))
        else:
            file.close()
        return not file.closed

    return Path(file.name), write


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("every", [5, 25])
def test_long_save_is_not_reported(
    watch_here: CheckpointWatch, saved_slowly: tuple[Path, Callable[[], bool]], every: int, readable: bool
) -> None:
    """This holds if the writer's file descriptors are readable, and if only the growth of the file shows."""
    path, write = saved_slowly
    watch_here.take(save_event(path), 1, 0.0)
    pids = {os.getpid()} if readable else set()
    now = 0
    while now % every or write():
        now += 1
        assert watch_here.look(float(now), pids) == []
    assert now > 45
    assert [watch_here.look(float(later), pids) for later in range(now, now + 200)] == [[]] * 200


def test_open_file_is_waited_for(
    watch_here: CheckpointWatch, saved_slowly: tuple[Path, Callable[[], bool]]
) -> None:
    path, write = saved_slowly
    write()
    watch_here.take(save_event(path), 1, 0.0)
    assert [match for now in range(2000) for match in watch_here.look(float(now), {os.getpid()})] == []
    # the run is over, so the file stays incomplete
    assert [match.rule for match in watch_here.finish(2000.0)] == [CORRUPT]


def test_file_written_by_a_child_of_the_rank_is_waited_for(
    watch_here: CheckpointWatch, tmp_path: Path
) -> None:
    file = weights(tmp_path / "model.safetensors", [100], cut=30)
    script = f"file = open({str(file)!r}, 'ab'); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "open\n"
        watch_here.take(save_event(file), 1, 0.0)
        assert [match for now in range(100) for match in watch_here.look(float(now), {os.getpid()})] == []
        child.communicate("\n")
    found = [match.rule for now in range(100, 150) for match in watch_here.look(float(now), {os.getpid()})]
    assert found == [CORRUPT]  # closed, and truncated


def test_repaired_checkpoint_is_withdrawn_and_reported_again(
    watch_here: CheckpointWatch, tmp_path: Path
) -> None:
    file = weights(tmp_path / "model.safetensors", [100], cut=30)
    watch_here.take(save_event(file), 1, 0.0)
    assert seen(watch_here, *map(float, range(100))) == [CORRUPT]
    assert watch_here.take_repaired() == []
    weights(file, [100])
    assert seen(watch_here, *map(float, range(100, 200))) == []
    assert watch_here.take_repaired() == [CORRUPT] and watch_here.take_repaired() == []
    weights(file, [100], cut=30)
    watch_here.take(save_event(file), 2, 200.0)
    assert seen(watch_here, *map(float, range(200, 300))) == [CORRUPT]


def test_finding_stays_open_while_another_file_is_broken(watch_here: CheckpointWatch, tmp_path: Path) -> None:
    files = [weights(tmp_path / name / "model.safetensors", [100], cut=30) for name in ("a", "b")]
    for number, file in enumerate(files):
        watch_here.take(save_event(file), number, 0.0)
    assert seen(watch_here, *map(float, range(100))) == [CORRUPT, CORRUPT]
    files[0].unlink()
    assert seen(watch_here, *map(float, range(100, 200))) == [] and watch_here.take_repaired() == []
    weights(files[1], [100])
    assert seen(watch_here, *map(float, range(200, 300))) == [] and watch_here.take_repaired() == [CORRUPT]


def test_end_of_a_run_requires_one_check(watch_here: CheckpointWatch, tmp_path: Path) -> None:
    file = weights(tmp_path / "model.safetensors", [100], cut=30)
    watch_here.take(save_event(file), 1, 0.0)
    assert [match.rule for match in watch_here.finish(1.0)] == [CORRUPT]


def test_files_in_a_folder_are_checked_with_it(watch_here: CheckpointWatch, tmp_path: Path) -> None:
    file = weights(tmp_path / "checkpoint-2" / "model.safetensors", [0])
    watch_here.take(save_event(file), 1, 0.0)
    watch_here.take(save_event(file.parent), 2, 1.0)
    assert [match.line.number for match in watch_here.finish(1.0)] == [2]


def test_complete_and_removed_checkpoints_are_not_reported(
    watch_here: CheckpointWatch, tmp_path: Path
) -> None:
    watch_here.take(save_event(weights(tmp_path / "model.safetensors", [3])), 1, 0.0)
    watch_here.take(save_event(tmp_path / "rotated-away"), 2, 0.0)
    watch_here.take({"kind": "checkpoint", "path": 3}, 3, 0.0)
    assert seen(watch_here, *range(200)) == []
    assert watch_here.finish(200.0) == []


def test_hanging_file_system_does_not_block_the_agent(tmp_path: Path) -> None:
    hangs = threading.Event()
    watched = CheckpointWatch(
        begin=lambda job: threading.Thread(target=lambda: (hangs.wait(), job())).start()
    )
    watched.take(save_event(weights(tmp_path / "model.safetensors", [0])), 1, 0.0)
    assert seen(watched, *range(100)) == []
    hangs.set()
    assert [match.rule for match in watched.finish(101.0)] == [EMPTY]


def test_hanging_check_does_not_prevent_later_checks(tmp_path: Path) -> None:
    jobs: list[Callable[[], None]] = []
    watched = CheckpointWatch(begin=jobs.append)
    watched.take(save_event(weights(tmp_path / "dead" / "model.safetensors", [0])), 1, 0.0)
    assert seen(watched, SETTLED_SECONDS) == [] and len(jobs) == 1  # the check never runs
    watched.take(save_event(weights(tmp_path / "model.safetensors", [0])), 2, 20.0)
    assert seen(watched, 40.0, SETTLED_SECONDS + PATIENCE_SECONDS - 1) == [] and len(jobs) == 1
    later = SETTLED_SECONDS + PATIENCE_SECONDS
    assert seen(watched, later) == [] and len(jobs) == 2
    jobs[-1]()
    assert seen(watched, later + 1, later + 1 + SURE_SECONDS) == [] and len(jobs) == 3
    jobs[-1]()
    (match,) = watched.look(181.0)
    assert (match.rule, match.line.number) == (EMPTY, 2)
    jobs[0]()  # the first check returned after all
    assert seen(watched, 182.0, 200.0, 212.0) == []
    jobs[-1]()
    assert [match.line.number for match in watched.look(213.0)] == [1]


def test_number_of_hanging_checks_is_bounded(tmp_path: Path) -> None:
    jobs: list[Callable[[], None]] = []
    watched = CheckpointWatch(begin=jobs.append)
    for number in range(50):
        watched.take(save_event(tmp_path / str(number)), number, 1000.0 * number)
        assert seen(watched, 1000.0 * number + SETTLED_SECONDS) == []
    assert len(jobs) == 4


def test_repeatedly_overwritten_checkpoint_is_reported(watch_here: CheckpointWatch, tmp_path: Path) -> None:
    """A trainer may overwrite its last checkpoint before a check can be certain."""
    file = weights(tmp_path / "last" / "model.safetensors", [0])
    found = []
    for now in range(100):
        if now % 15 == 0:
            watch_here.take(save_event(file), now, float(now))
        found += watch_here.look(float(now))
    assert [match.rule for match in found] == [EMPTY]


def test_fault_of_a_file_is_kept_when_its_folder_is_reported(
    watch_here: CheckpointWatch, tmp_path: Path
) -> None:
    file = weights(tmp_path / "checkpoint-2" / "model.safetensors", [0])
    watch_here.take(save_event(file), 1, 0.0)
    sure = SETTLED_SECONDS + SURE_SECONDS + 2
    assert seen(watch_here, SETTLED_SECONDS, SETTLED_SECONDS + 1) == []
    watch_here.take(save_event(file.parent), 2, sure - SETTLED_SECONDS)
    assert seen(watch_here, sure, sure + 1) == [EMPTY]


def test_error_in_a_check_is_reported_once_without_traceback(
    watch: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path, below: FolderContent) -> list[Fault]:
        if "odd" in path.name:
            raise ValueError("year 0 is out of range")
        return check_checkpoint(path, below)

    monkeypatch.setattr(checking, "check_checkpoint", fails)
    run = watch()
    watched = run.agent._intake._checkpoints = CheckpointWatch(begin=lambda job: job())
    file = weights(tmp_path / "model.safetensors", [0])
    (tmp_path / "odd").touch()
    watched.take(save_event(tmp_path / "odd"), 1, run.now)
    watched.take(save_event(file), 2, run.now)
    run.wait(60)
    assert [incident.rule for incident in run.sent] == [EMPTY]
    (notice,) = run.notices
    assert "checking the checkpoints failed (ValueError: year 0 is out of range)" in notice


@pytest.mark.parametrize("language", ["en", "zh"])
def test_checkpoint_incident_of_an_earlier_agent_stays_open(
    watch: Callable[..., Any], tmp_path: Path, language: str
) -> None:
    run = watch(language=language)
    run.agent._intake._checkpoints = CheckpointWatch(begin=lambda job: job())
    file = weights(tmp_path / "model.safetensors", [0])
    run.agent._intake._checkpoints.take(save_event(file), 1, run.now)
    run.wait(60)
    assert [(incident.rule, incident.status) for incident in run.sent] == [(EMPTY, "open")]
    run.end("unknown", None)
    run.folder = RunFolder.create("sft", ["python", "sft.py"], home=run.home, now=run.now, reuse=True)
    run.agent = Agent(run.folder, run.settings, run.catalogue, [run.sent.append], clock=lambda: run.now)
    run.steps(1, 30)
    run.end("finished", 0)
    found = [(incident.status, incident.resolution) for incident in run.sent if incident.rule == EMPTY]
    assert found == [("open", ""), ("resolved", "unmended")]


def test_checkpoint_of_empty_tensors_is_an_incident(watch: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "rings").mkdir()
    run = watch()
    run.agent._probing = Probing(tmp_path / "rings")
    run.agent._intake._checkpoints = CheckpointWatch(begin=lambda job: job())
    probe = Probe(tmp_path / "rings", {"RANK": "0"}, lambda: run.now)
    probe.announce()
    file = weights(tmp_path / "checkpoint-2" / "model.safetensors", [0])
    probe.event("checkpoint", path=str(file.parent), by="trainer")
    for _ in range(40):
        run.wait(2.0)
        probe.step(loss=0.5)
    (incident,) = run.sent
    assert (incident.rule, incident.severity) == (EMPTY, "warning")
    assert str(file) in incident.evidence[0] and incident.note
    diagnosis = run.end("finished", 0)
    assert (diagnosis.verdict, diagnosis.primary.rule, diagnosis.primary.harm) == (
        "degraded",
        EMPTY,
        "degrading",
    )
    last = run.sent[-1]
    assert (last.kind, last.status, last.resolution) == (
        "finding",
        "resolved",
        "unmended",
    )  # the checkpoint is still broken
    assert run.metric(f"stallwatch_incident_open{{rule={EMPTY},severity=warning}}") == 1
    follower = RunFolder.create("sft", ["python"], home=run.home, now=run.now, reuse=True)
    Agent(follower, run.settings, run.catalogue, [run.sent.append], clock=lambda: run.now).end(
        Ending(kind="finished", exit_code=0), run.now
    )
    assert run.sent[-1] is last  # nothing follows the end of the run


def test_incident_of_a_repaired_checkpoint_closes_as_recovered(
    watch: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "rings").mkdir()
    run = watch()
    run.agent._probing = Probing(tmp_path / "rings")
    run.agent._intake._checkpoints = CheckpointWatch(begin=lambda job: job())
    probe = Probe(tmp_path / "rings", {"RANK": "0"}, lambda: run.now)
    probe.announce()
    file = weights(tmp_path / "checkpoint-2" / "model.safetensors", [100], cut=30)
    probe.event("checkpoint", path=str(file.parent), by="trainer")
    run.train([probe], 30)
    weights(file, [100])
    run.train([probe], 60)
    assert run.changes == [
        (f"finding/{CORRUPT}/1", "open", ""),
        (f"finding/{CORRUPT}/1", "resolved", "recovered"),
    ]
    assert run.end("finished", 0).verdict == "finished"


def test_broken_last_checkpoint_of_a_finished_run_is_reported(
    watch: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "rings").mkdir()
    run = watch()
    run.agent._probing = Probing(tmp_path / "rings")
    run.agent._intake._checkpoints = CheckpointWatch(begin=lambda job: job())
    probe = Probe(tmp_path / "rings", {"RANK": "0"}, lambda: run.now)
    probe.announce()
    for _ in range(5):
        run.wait(2.0)
        probe.step(loss=0.5)
    file = tmp_path / "final" / "model.safetensors"
    file.parent.mkdir()
    file.touch()
    probe.event("checkpoint", path=str(file.parent), by="trainer")
    assert run.end("finished", 0).verdict == "degraded"
    assert [(item.rule, item.status, item.resolution) for item in run.sent] == [
        (CORRUPT, "resolved", "unmended")
    ]


def announce_trainer(probe: Probe, **about: Any) -> None:
    probe.announce()
    probe.event("versions", trl="0.15.2", deepspeed="0.16.4", transformers="4.48.3")
    probe.event("trainer", **about)


@pytest.mark.parametrize(
    ("about", "rules"),
    [
        ({"classes": ["GRPOTrainer", "Trainer"], "stage": 3}, ["trl-offload-hooks-renamed"]),
        ({"classes": ["GRPOTrainer", "Trainer"], "stage": 2}, []),
        ({"classes": ["SFTTrainer", "Trainer"], "stage": 3}, []),
        ({"classes": None, "stage": None}, []),
    ],
)
def test_incompatible_versions_are_reported_at_the_start(
    watch: Callable[..., Any], tmp_path: Path, about: dict[str, Any], rules: list[str]
) -> None:
    (tmp_path / "rings").mkdir()
    run = watch()
    run.agent._probing = Probing(tmp_path / "rings")
    announce_trainer(Probe(tmp_path / "rings", {"RANK": "0"}, lambda: run.now), **about)
    run.wait(3)
    assert [incident.rule for incident in run.sent] == rules
    diagnosis = run.end("finished", 0)
    assert diagnosis.environment == {"trl": "0.15.2", "deepspeed": "0.16.4", "transformers": "4.48.3"}
