"""A rank that SIGKILL ended is reported while its launcher still waits, with a cause from memory metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stallwatch_exporter.running.ending import EndingWatch, classify
from stallwatch_rules.locale import render

GIB = 2**30
KILLED = (
    "E1121 08:41:10.745000 26924 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9)"
    " local_rank: 1 (pid: 27127) of binary: /opt/venv/bin/python"
)
OUTSIDE, OOM = "process-killed-from-outside", "host-oom-sigkill"


@pytest.mark.parametrize(
    ("counted", "held", "rule", "note"),
    [
        (False, 12, OUTSIDE, "The kernel's OOM killer did not kill the process"),
        (True, 12, OOM, "the kernel's count of out-of-memory kills rose"),
        (False, 125, OOM, "used up to 125.0 GiB of memory, and the limit is 128.0 GiB"),
        (None, 12, OOM, ""),
    ],
)
def test_cause_of_a_kill_depends_on_the_memory(
    run: Any, counted: bool | None, held: int, rule: str, note: str
) -> None:
    run.agent.memory.counted = lambda: counted
    run.agent.memory.command(held * GIB, 128 * GIB)
    for rank in (0, 1):
        run.agent.memory.rank(rank, {"resident_bytes": held * GIB / 2})
    run.steps(1, 10)
    run.say(KILLED)
    run.wait(2)
    (found,) = run.sent
    assert (found.kind, found.rule, found.severity) == ("finding", rule, "critical")
    assert note in render(found.note) and KILLED in found.evidence
    run.say(KILLED)  # the launcher's summary repeats the line
    run.wait(8)
    assert run.changes == [(f"finding/{rule}/1", "open", "")]


def test_kernel_counters_are_read_during_the_run(tmp_path: Path) -> None:
    events = tmp_path / "cgroup" / "job" / "memory.events"
    events.parent.mkdir(parents=True)
    own = tmp_path / "proc" / "self" / "cgroup"
    own.parent.mkdir(parents=True)
    assert EndingWatch(tmp_path / "proc", tmp_path / "cgroup").counted() is None
    own.write_text("0::/job\n")
    events.write_text("oom 3\noom_kill 2\n")
    watch = EndingWatch(tmp_path / "proc", tmp_path / "cgroup")
    assert watch.counted() is False
    events.write_text("oom 4\noom_kill 3\n")
    assert watch.counted() is True


def test_kills_counted_later_belong_to_other_processes(run: Any, tmp_path: Path) -> None:
    machine = tmp_path / "proc" / "vmstat"
    machine.parent.mkdir()
    machine.write_text("oom_kill 4\n")
    endings = EndingWatch(tmp_path / "proc", tmp_path / "cgroup")
    run.agent.memory.counted, run.agent.memory.killed = endings.counted, endings.killed
    run.agent.memory.command(12 * GIB, 128 * GIB)
    for rank in (0, 1):
        run.agent.memory.rank(rank, {"resident_bytes": 6 * GIB})
    run.steps(1, 10)
    run.say(KILLED)
    run.wait(2)
    machine.write_text("oom_kill 5\n")  # the counter includes another job
    run.wait(8)
    ending = run.agent.judged(classify(1, oom=endings.counts, seconds=60.0, now=run.now, last_lines=[KILLED]))
    run.agent.end(ending, run.now)
    assert {item.rule for item in run.sent} == {OUTSIDE} and ending.kind == "failed"


def test_second_kill_of_a_run_is_recognized(tmp_path: Path) -> None:
    machine = tmp_path / "proc" / "vmstat"
    machine.parent.mkdir()
    machine.write_text("oom_kill 4\n")
    endings = EndingWatch(tmp_path / "proc", tmp_path / "cgroup")
    endings.killed((10,))
    machine.write_text("oom_kill 5\n")
    endings.killed((10,))
    assert endings.counted() is False
    endings.killed((20,))  # a separate kill
    assert endings.counted() is True
    endings.killed((10,))
    machine.write_text("oom_kill 6\n")
    endings.killed(None)
    assert classify(-9, oom=endings.counts, seconds=1.0, now=1.0).kind == "oom-killed"
