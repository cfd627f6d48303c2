"""The agent when time is uneven: suspended, set back, or behind in its input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from agentcases import OOM

from stallwatch_exporter.running.capture import Chunk
from stallwatch_exporter.runs.runfolder import RunFolder, agent_alive
from stallwatch_exporter.tailing.follow import Follower
from stallwatch_exporter.tailing.tailset import TailSet
from stallwatch_exporter.watching.opening import read_history


def test_suspension_of_the_agent_is_not_a_stall(run: Any) -> None:
    run.steps(1, 10)
    run.now += 5000.0
    run.agent.paused(5000.0)
    run.wait(20)
    assert run.sent == []


def test_late_reading_is_judged_by_the_lines_read_so_far(run: Any) -> None:
    """Lines of files have no times: late lines came some time before, and more may follow."""
    run.steps(1, 10)
    read = run.now
    run.now += 100.0
    run.agent.feed(Chunk("stdout", b"step 11/1000 loss 0.5\n", run.now))
    run.say(*OOM)
    run.agent.tick(run.now, read_until=read)
    assert run.sent == []  # the other lines of the failure may still come
    run.now += 2.0
    run.agent.tick(run.now)
    assert run.changes == [("finding/cuda-oom/1", "open", "")]


def test_incident_does_not_end_before_it_begins(run: Any) -> None:
    """A lost rank has the current time, and log lines have their own time, which may be far ahead."""
    run.steps(1, 10)
    run.say(*OOM)
    run.wait(5)
    run.now -= 3600.0
    run.end("finished", 0)
    (over,) = [each for each in run.sent if each.status == "resolved"]
    assert over.resolved_at == over.opened_at


def begun(run: Any, log: Path, written: float) -> Follower:
    """Return the follower of a log that was last written at `written`."""
    log.write_text("".join(f"step {step}/1000 loss 0.5\n" for step in range(1, 11)))
    os.utime(log, (written, written))
    files = TailSet([str(log)])
    files.discover()
    read_history(run.agent, files)
    return Follower(run.agent, files, clock=lambda: run.now)


def test_file_time_in_the_future_does_not_hide_a_stall(run: Any, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    follower = begun(run, log, run.now + 7200.0)
    for step in range(11, 31):
        run.wait(4)
        with log.open("a") as out:
            out.write(f"step {step}/1000 loss 0.5\n")
        follower.step({log})
    assert run.sent == []
    run.wait(120)
    assert run.changes == [("stall/silent-hang-no-error/1", "open", "")]


def test_suspended_machine_under_tail_is_not_a_stall(run: Any, tmp_path: Path) -> None:
    """Some virtual machines count the time for which they were suspended."""
    log = tmp_path / "train.log"
    follower = begun(run, log, run.now)
    waits = iter([1.0] * 20 + [7200.0] + [1.0] * 10)

    def wait(_: float) -> set[Path]:
        run.now += next(waits)
        return set()

    follower._waker.wait = wait  # type: ignore[method-assign]
    until = run.now + 7225.0
    follower.follow(lambda: run.now > until, until_idle=60.0)
    assert run.sent == [] and run.now > until  # two hours without lines did not end it either


def test_record_from_the_future_belongs_to_a_live_agent(tmp_path: Path) -> None:
    """The record is from another host, so the local clock may be behind, or was set back."""
    info = RunFolder.create("sft", ["x"], home=tmp_path).info
    other = msgspec.structs.replace(info, host="another-host", updated_at=10_000_000.0)
    assert agent_alive(other, 10_000_000.0 - 7200.0)
    assert not agent_alive(other, 10_000_000.0 + 7200.0)
    assert not agent_alive(other, 10_000_000.0 - 30 * 86400.0)
