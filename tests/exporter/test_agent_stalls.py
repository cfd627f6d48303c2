"""The agent at a stall: when it opens, when it is over, and what is not a stall."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from agentcases import HANG

Make = Callable[..., Any]


def test_stall_opens_at_the_learned_threshold_and_recovers(run: Any) -> None:
    run.steps(1, 10)
    run.wait(30)
    assert run.sent == []
    run.wait(1)
    (stall,) = run.sent
    assert (stall.id, stall.severity, stall.status) == ("sft/" + HANG + "/1", "critical", "open")
    assert (stall.step, stall.total_steps, stall.phase) == (10, 1000, "train")
    assert (stall.threshold_seconds, stall.at_floor, stall.stalled_seconds) == (30.0, True, 31.0)
    assert stall.quiet_since == pytest.approx(stall.opened_at - 31.0)
    assert stall.last_loss == 0.2
    assert stall.primary is not None and stall.primary.fixes
    assert run.kept("agent.json")["state"] == "stalled"
    assert run.metric("stallwatch_incident_open{rule=silent-hang-no-error,severity=critical}") == 1

    run.wait(69)
    run.say("step 11/1000 loss 0.18")
    run.wait(1)
    assert run.changes == [(HANG + "/1", "open", ""), (HANG + "/1", "resolved", "recovered")]
    assert run.sent[-1].stalled_seconds == 100.0
    assert run.sent[-1].quiet_since == stall.quiet_since
    assert run.sent[-1].step == 11 and run.sent[-1].last_loss == 0.18
    assert run.metric("stallwatch_incident_open{rule=silent-hang-no-error,severity=critical}") == 0
    assert run.metric("stallwatch_stalled_seconds_total") == pytest.approx(70, abs=1.5)
    assert run.kept("agent.json")["state"] == "training"


def test_early_stall_says_that_its_threshold_is_not_learned(run: Any) -> None:
    run.steps(1, 60, seconds=0.3)
    run.wait(85)
    (stall,) = run.sent
    assert (stall.threshold_seconds, stall.at_floor, stall.learning) == (84.0, False, True)
    run.say("step 61/1000 loss 0.1")
    run.steps(62, 70, seconds=4.0)
    run.wait(61)
    assert [item.learning for item in run.sent[-1:]] == [False]


def test_repeated_startup_line_does_not_reset_the_steps(run: Any) -> None:
    run.say("starting my program", "loading the data set", "the model is ready")
    run.steps(1, 10)
    run.say("loading the data set")
    run.wait(31)
    (stall,) = run.sent
    assert (stall.id, stall.step) == ("sft/" + HANG + "/1", 10)


def test_second_stall_is_reported_again(run: Any) -> None:
    run.steps(1, 10)
    run.wait(40)
    run.say("step 11/1000 loss 0.18")
    run.wait(60)
    assert len(run.changes) == 2  # 1.5 times a pause from which the run recovered is not a stall
    run.wait(1)
    assert [change[0] for change in run.changes] == [HANG + "/1", HANG + "/1", HANG + "/2"]
    assert [incident.id for incident in run.kept_incidents if incident.status == "open"][-1].endswith("/2")


def test_two_stalls_between_checks_are_two_incidents(run: Any) -> None:
    run.steps(1, 10)
    run.wait(40)
    run.now += 0.1
    run.say("step 11/1000 loss 0.18")
    run.now += 61.0  # the agent had no time to check
    run.agent.tick(run.now)
    assert run.changes == [
        (HANG + "/1", "open", ""),
        (HANG + "/1", "resolved", "recovered"),
        (HANG + "/2", "open", ""),
    ]


def test_long_stall_is_updated_rarely(run: Any) -> None:
    run.steps(1, 10)
    run.wait(331)
    assert {incident.status for incident in run.sent} == {"open"}
    assert 3 <= len(run.sent) <= 8
    assert run.sent[-1].stalled_seconds > 250


def test_long_evaluation_is_not_a_stall(run: Any) -> None:
    run.steps(1, 20)
    run.say("***** Running Evaluation *****")
    run.wait(600)
    run.steps(21, 30)
    assert run.sent == []
    assert run.metric("stallwatch_phase{stallwatch_phase=train}") == 1


def test_threshold_before_the_first_step_is_long(run: Any) -> None:
    run.say("Loading checkpoint shards")
    run.wait(3599)
    assert run.sent == []
    run.wait(2)
    assert run.changes == [(HANG + "/1", "open", "")]
    assert run.sent[0].phase == "init" and run.sent[0].step is None


def test_threshold_is_published(watch: Make) -> None:
    run = watch(stall_floor_seconds=5.0, stall_factor=4.0)
    assert run.metric("stallwatch_stall_threshold_seconds{phase=init}") == 3600
    run.steps(1, 12, seconds=2.0)
    run.wait(1)
    assert run.metric("stallwatch_stall_threshold_seconds{phase=train}") == pytest.approx(8.0)


def test_recovery_from_a_long_start_shows_the_current_step(watch: Make) -> None:
    run = watch(stall_start_seconds=10.0)
    run.wait(22)
    run.say("step 1/1000 loss 0.5")
    run.wait(1)
    opened, over = [run.sent[0], run.sent[-1]]
    assert (opened.phase, opened.step) == ("init", None)
    assert (over.resolution, over.phase, over.step) == ("recovered", "train", 1)


ASSERTED = (
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 12, in <module>',
    "RuntimeError: CUDA error: device-side assert triggered",
)


@pytest.mark.parametrize(("silent", "verdict"), [(40, "failed"), (1, "stalled")])
def test_failure_after_a_stall_is_the_cause(run: Any, silent: int, verdict: str) -> None:
    """After a rank's death, the others may wait; an agent that only follows a log does not see the end."""
    run.steps(1, 10)
    run.wait(silent)
    run.say(*ASSERTED)
    run.wait(40)
    found = run.end("unknown", None)
    assert found.primary is not None and found.primary.rule == "cuda-device-side-assert"
    assert found.verdict == verdict
