"""A crash and a stall reach the chat through Prometheus, Alertmanager and the relay: once, and soon."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

CRASH_SECONDS = 15.0
STALL_SECONDS = 15.0
FLOOR = 6.0  # that the stack sets; the steps are much shorter


def test_the_configurations_that_we_give_away_are_accepted_by_their_servers(stack: Any) -> None:
    for command in (
        ["promtool", "check", "config", "prometheus.yml"],
        ["amtool", "check-config", "alertmanager.yml"],
    ):
        done = subprocess.run(command, cwd=stack.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_crash_is_in_chat_within_fifteen_seconds_and_once(stack: Any, script: Any) -> None:
    stack.start("alertmanager", "relay", "prometheus")
    run, both_ways = stack.train("crashes"), stack.train("told-by-its-agent", chats=True)
    stack.until_known("crashes", "told-by-its-agent")
    crash = 1.0
    script.at(crash, lambda: run.order("crash"))
    script.at(crash, lambda: both_ways.order("crash"))
    script.between(crash, crash + CRASH_SECONDS, "in chat", lambda: stack.chat.about("crashes"))
    # Its agent tells this one, and the relay hears of it too.
    script.between(crash, crash + 10, "from the agent", lambda: stack.chat.about("told-by-its-agent"))
    script.between(crash, crash + 20, "in Alertmanager", lambda: "told-by-its-agent" in stack.alerts())
    met = script.run(settle=8)
    print(f"crash to chat: {met['in chat'] - crash:.1f} s")
    print(f"crash to chat by the agent itself: {met['from the agent'] - crash:.1f} s")
    (message,) = stack.chat.about("crashes")  # once, although several alerts speak of it
    assert (message["kind"], message["severity"]) == ("ended", "critical")
    assert message["rule"] == "cuda-oom"
    assert "CUDA error: out of memory" in message["text"]  # the evidence, which no alert holds
    assert "1. " in message["text"]  # and what to do
    assert "/catalogue/memory/cuda-oom.md" in message["text"]
    assert run.ended and "failed" in run.said
    assert len(stack.chat.about("told-by-its-agent")) == 1
    assert not [one for one in stack.chat.messages if one["status"] == "resolved"]


def test_a_stall_is_in_chat_fifteen_seconds_after_its_threshold_and_its_end_too(
    stack: Any, script: Any
) -> None:
    stack.start("alertmanager", "relay", "prometheus")
    run = stack.train("stalls")
    stack.until_known("stalls")
    threshold = stack.number('stallwatch_stall_threshold_seconds{run="stalls",phase="train"}')
    assert threshold is not None and FLOOR <= threshold < 60
    stall, goes_on = 1.0, 1.0 + threshold + STALL_SECONDS + 1.0
    told, over = (lambda: stack.chat.about("stalls")), (lambda: stack.chat.about("stalls", "resolved"))
    script.at(stall, lambda: run.order("stall"))
    script.between(stall + threshold, stall + threshold + STALL_SECONDS, "in chat", told)
    script.at(goes_on, lambda: run.order("go"))
    script.between(goes_on, goes_on + STALL_SECONDS, "over", over)
    met = script.run()
    print(f"threshold to chat: {met['in chat'] - stall - threshold:.1f} s")
    print(f"recovery to chat: {met['over'] - goes_on:.1f} s")
    ((opened,), (ended,)) = (told(), over())
    assert (opened["kind"], opened["rule"]) == ("stall", "silent-hang-no-error")
    assert f"This run's own rhythm allows {threshold:.0f} s." in opened["text"]
    assert opened["id"] == ended["id"]
    assert "recovered" in ended["title"]


def test_an_agent_that_vanishes_is_told_and_a_run_that_finished_is_not(stack: Any, script: Any) -> None:
    stack.start("alertmanager", "relay", "prometheus")
    finishes, vanishes = stack.train("finishes"), stack.train("vanishes")
    stack.until_known("finishes", "vanishes")
    script.at(1, lambda: finishes.order("finish"))
    script.at(1, vanishes.kill_agent)
    script.between(1, 45, "the agent has ended", lambda: finishes.ended)
    script.between(1 + 30, 1 + 60, "in chat", lambda: stack.chat.about("vanishes"))
    script.run(settle=8)
    assert [(one["run"], one["rule"]) for one in stack.chat.messages] == [("vanishes", "StallwatchAgentGone")]
    (message,) = stack.chat.messages
    assert message["kind"] == "alert"
    assert "docs/alerts.md#stallwatchagentgone" in message["text"]
