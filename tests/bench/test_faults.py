"""The fault matrix: its schedule, counts and judgement, and a minute of real trials."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fault_kinds import FAULTS, agent_stopped, left_out
from fault_trials import Result, Trial, reference, stages
from faults import schedule

ROOT = Path(__file__).resolve().parents[2]


def test_schedule_contains_every_fault() -> None:
    planned = schedule(2 * sum(share for _, share in FAULTS.values()), ())
    assert {name for _, name, _ in planned} == FAULTS.keys() - left_out().keys()
    for name in {name for _, name, _ in planned}:
        indices = [index for _, fault, index in planned if fault == name]
        assert indices == list(range(len(indices)))
    assert planned[:20] == schedule(20, ())


def test_unknown_fault_is_refused() -> None:
    with pytest.raises(SystemExit, match="no fault is called flood"):
        schedule(10, ["flood"])


def test_message_about_several_incidents_counts_for_each() -> None:
    body = {"id": "a/stall/x/1", "status": "open", "incidents": "a/stall/x/1,a/stall/x/1,a/ended/y/1"}
    assert stages([{**body, "statuses": "open,resolved,resolved"}]) == [
        ("a/stall/x/1", "open"),
        ("a/stall/x/1", "resolved"),
        ("a/ended/y/1", "resolved"),
    ]


def judged(scenario: str, *bodies: dict[str, Any], stderr: str = "", stdout: bytes | None = None) -> Result:
    """Return the result of a trial whose training was fine and whose chat got these messages."""
    trial = Trial(0, 1, "none", 0, scenario)
    bare = reference(scenario)
    trial.stdout.write_bytes(bare.stdout if stdout is None else stdout)
    trial.stderr.write_text("\n".join(bare.stderr) + stderr)
    trial.note.write_text(f"0.03 {bare.code}")
    trial.code = bare.code
    trial.chat.taken = [{"run": "trial", "severity": "critical", "title": "", **body} for body in bodies]
    trial.check()
    trial.discard()
    trial.result.broken += trial.problems
    return trial.result


def test_begin_of_an_incident_during_a_suspension_is_not_expected() -> None:
    for slept, awake in ((0.0, 3.5), (2.0, 1.5)):
        trial = Trial(0, 1, "none", 0, "lingering-crash")
        trial.note.write_text("0.03 3")
        end = trial.note.stat().st_mtime
        trial.asleep = (end - slept, end + 9.0)
        assert trial._awake_before_the_end() == pytest.approx(awake)
        trial.discard()


def test_ended_agent_is_not_stopped_again() -> None:
    trial = Trial(0, 1, "none", 0, "crash")
    trial.at = lambda moment, act: act()
    assert not trial.kill(signal.SIGKILL) and not trial.killed
    agent_stopped(trial)
    assert trial.asleep == (math.inf, math.inf)
    trial.discard()


CRASH = {"id": "trial/ended/cuda-oom/1", "status": "resolved", "outcome": "crashed"}
OPEN = {"id": "trial/finding/cuda-oom/1", "status": "open", "outcome": None}
CLOSED = {**OPEN, "status": "resolved", "outcome": "crashed"}


def test_trial_that_keeps_all_promises_is_not_broken() -> None:
    assert judged("crash", CRASH).broken == []
    assert judged("crash", CRASH, CRASH).twice == 1
    assert judged("lingering-crash", OPEN, CLOSED).broken == []


def test_broken_promises_are_found() -> None:
    silent = judged("crash")
    expected = (1, 1, ["missing without a report: resolved/crashed"])
    assert (silent.missing, silent.silent, silent.broken) == expected
    stated = judged("crash", stderr="\nstallwatch: 1 message could not be delivered to chats\n")
    assert (stated.missing, stated.silent, stated.broken) == (1, 0, ["missing: resolved/crashed"])
    assert judged("crash", CRASH, CRASH, CRASH).broken == ["trial/ended/cuda-oom/1 resolved was sent 3 times"]
    assert not judged("lingering-crash", CLOSED, OPEN).in_order
    assert not judged("finish", stdout=b"step 1").untouched
    assert judged("finish", OPEN).broken == ["false alarm: "]


@pytest.mark.timeout(900)
def test_each_fault_once_breaks_no_promise(tmp_path: Path) -> None:
    """This takes up to three minutes on a busy machine."""
    results = tmp_path / "faults.jsonl"
    command = [sys.executable, "bench/faults.py", "--seed", "22", "--once", "--minutes", "3"]
    done = subprocess.run(
        [*command, "--trials", "40", "--resume", str(results)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tried = Counter(json.loads(line)["fault"] for line in results.read_text().splitlines())
    assert tried["agent SIGKILL"] and tried["write errors"] and tried["chat down"]
