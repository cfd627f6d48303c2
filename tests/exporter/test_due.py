"""A fatal line wakes the agent's loops, so that people are notified soon."""

from __future__ import annotations

from typing import Any

from stallwatch_exporter.watching.alarms import GATHER_SECONDS

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def test_no_check_is_due_without_a_reason(run: Any) -> None:
    run.say("{'loss': 2.1} step 1")
    assert run.agent.due_in() == float("inf")


def test_fatal_line_triggers_a_check(run: Any) -> None:
    run.say(OOM)
    assert run.agent.due_in() == GATHER_SECONDS
    run.now += GATHER_SECONDS / 2
    assert run.agent.due_in() == GATHER_SECONDS / 2
    run.now += GATHER_SECONDS / 2
    assert (run.agent.due_in(), run.sent) == (0.0, [])
    run.agent.tick(run.now)
    assert [incident.rule for incident in run.sent] == ["cuda-oom"]
    run.wait(11)  # the command has started: its processes are checked once a second from now on
    assert run.agent.due_in() == float("inf")
