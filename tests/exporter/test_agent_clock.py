"""The agent where time is not even: suspended, set back, or behind with what it reads."""

from __future__ import annotations

from typing import Any

from agentcases import OOM

from stallwatch_exporter.running.capture import Chunk


def test_suspension_of_the_watcher_is_no_stall(run: Any) -> None:
    run.steps(1, 10)
    run.now += 5000.0
    run.agent.paused(5000.0)
    run.wait(20)
    assert run.told == []


def test_a_run_that_is_read_late_is_judged_as_of_what_was_read(run: Any) -> None:
    """Files tell no times: what is read late came some time before, and there may be more."""
    run.steps(1, 10)
    read = run.now
    run.now += 100.0
    run.agent.feed(Chunk("stdout", b"step 11/1000 loss 0.5\n", run.now))
    run.say(*OOM)
    run.agent.tick(run.now, read_until=read)
    assert run.told == []  # the other lines of the failure may still come
    run.now += 2.0
    run.agent.tick(run.now)
    assert run.changes == [("finding/cuda-oom/1", "open", "")]


def test_no_incident_is_over_before_it_began(run: Any) -> None:
    """Of a rank that is gone the present tells, of lines their own time: the one may be far ahead."""
    run.steps(1, 10)
    run.say(*OOM)
    run.wait(5)
    run.now -= 3600.0
    run.end("finished", 0)
    (over,) = [each for each in run.told if each.status == "resolved"]
    assert over.resolved_at == over.opened_at
