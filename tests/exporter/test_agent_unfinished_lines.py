"""The agent at a stall after a progress bar, or after a line without an end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from agentcases import HANG

from stallwatch_exporter.running.capture import Chunk

Make = Callable[..., Any]


def draw(run: Any, step: int) -> None:
    """Print one state of a tqdm bar: the carriage return comes first."""
    bar = f"\r {step}%|██        | {step}/100 [00:{step:02}<00:09, 10.0it/s]"
    run.agent.feed(Chunk("stderr", bar.encode(), run.now, stream="stderr"))


@pytest.mark.parametrize("kind", ["killed", "unknown"])
def test_killed_run_with_an_unfinished_bar_did_not_recover(watch: Make, kind: str) -> None:
    run = watch(stall_floor_seconds=4.0)
    for step in range(1, 31):
        run.wait(1)
        draw(run, step)
    run.wait(10)
    (stall,) = {incident.id: incident for incident in run.sent}.values()
    assert (stall.step, stall.status, stall.rule) == (30, "open", "silent-hang-no-error")
    diagnosis = run.end(kind, 137 if kind == "killed" else None)
    assert "recovered" not in {incident.resolution for incident in run.sent}
    assert diagnosis.progress.last_step == 30
    assert diagnosis.verdict in ("stalled", "failed")
    assert "silent-hang-no-error" in [finding.rule for finding in diagnosis.findings]
    if kind == "killed":
        assert run.changes[1:] == [(HANG + "/1", "resolved", "run-failed")]


def test_advancing_bar_after_a_stall_is_a_recovery(watch: Make) -> None:
    run = watch(stall_floor_seconds=4.0)
    for step in range(1, 31):
        run.wait(1)
        draw(run, step)
    run.wait(10)
    draw(run, 31)
    run.wait(2)
    assert run.changes == [(HANG + "/1", "open", ""), (HANG + "/1", "resolved", "recovered")]


def test_unfinished_line_at_the_end_of_a_stall_is_not_a_recovery(watch: Make) -> None:
    run = watch(stall_floor_seconds=4.0)
    run.steps(1, 10, seconds=1.0)
    run.agent.feed(Chunk("stdout", b"step 11/1000 loss 0.1", run.now))
    run.wait(10)
    diagnosis = run.end("killed", 137)
    assert "recovered" not in {incident.resolution for incident in run.sent}
    assert diagnosis.progress.last_step == 11
    assert "silent-hang-no-error" in [finding.rule for finding in diagnosis.findings]
