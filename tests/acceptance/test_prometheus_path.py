"""A crash and a stall reach the chat through Prometheus, Alertmanager and the relay, once and in time.

Five runs share one script, because most of their time is waiting; each test checks some of them.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

CRASH_SECONDS = 15.0
STALL_SECONDS = 15.0
BUSY_SECONDS = 15.0  # seconds that other load on the machine may add to a promised delay
FLOOR = 6.0  # threshold floor that the stack sets; the steps are much shorter
# Five steps a second. The threshold is three times the floor until the log shows training for as long as the
# floor. Twice as many steps ensure that the threshold has fallen when the test reads it.
TAUGHT_STEPS = int(2 * FLOOR * 5)


def test_shipped_configurations_are_valid(stack: Any) -> None:
    for command in (
        ["promtool", "check", "config", "prometheus.yml"],
        ["amtool", "check-config", "alertmanager.yml"],
    ):
        done = subprocess.run(command, cwd=stack.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@dataclass
class Played:
    """Result of the script."""

    stack: Any
    crashed: Any  #: the run that crashed
    met: dict[str, float] = field(default_factory=dict)
    threshold: float = 0.0
    goes_on: float = 0.0

    def about(self, *runs: str) -> list[dict[str, Any]]:
        """Return all messages to the chat about these runs."""
        return [message for message in self.stack.chat.messages if message["run"] in runs]


BEGIN = 1.0


@pytest.fixture
def played(shared: Any, request: pytest.FixtureRequest) -> Played:
    """Return the result of one play for all tests; a rerun test gets a new play (see tests/conftest.py)."""
    outcome: Played = shared.outcome(play, again=getattr(request.node, "execution_count", 1) > 1)
    return outcome


def play(stack: Any, script: Any) -> Played:
    """Run five trainings, and return the chat's messages with their times."""
    stack.start("alertmanager", "relay", "prometheus")
    crashes, both_ways = stack.train("crashes"), stack.train("reported-by-its-agent", chats=True)
    stalls, finishes, vanishes = (stack.train(name) for name in ("stalls", "finishes", "vanishes"))
    stack.until_known("crashes", "reported-by-its-agent", "finishes", "vanishes")
    stack.until_known("stalls", steps=TAUGHT_STEPS)
    result = Played(stack, crashes)

    def in_chat(run: str, status: str = "open") -> Any:
        return lambda: stack.chat.about(run, status)

    for run, order in ((crashes, "crash"), (both_ways, "crash"), (stalls, "stall"), (finishes, "finish")):
        script.at(BEGIN, lambda run=run, order=order: run.order(order))
    script.at(BEGIN, vanishes.kill_agent)
    script.between(
        BEGIN, BEGIN + CRASH_SECONDS + BUSY_SECONDS, "crash in chat", in_chat("crashes", "resolved")
    )
    # The agent of this run notifies the chat itself, and the relay gets the alert too.
    script.between(
        BEGIN,
        BEGIN + 10 + BUSY_SECONDS,
        "crash from the agent",
        in_chat("reported-by-its-agent", "resolved"),
    )
    script.between(
        BEGIN, BEGIN + 20 + BUSY_SECONDS, "in Alertmanager", lambda: "reported-by-its-agent" in stack.alerts()
    )

    def expect_the_stall() -> None:
        """Expect the stall message: the run stalls by now, so the threshold no longer changes."""
        result.threshold = threshold = stalls.number("stallwatch_stall_threshold_seconds", 'phase="train"')
        assert FLOOR <= threshold < 60
        latest = BEGIN + threshold + STALL_SECONDS
        script.between(BEGIN + threshold, latest + BUSY_SECONDS, "stall in chat", in_chat("stalls"))
        result.goes_on = latest + 1.0
        script.at(result.goes_on, go_on)

    def go_on() -> None:
        """Let the run continue after the stall message has arrived, or wait another second."""
        if not stack.chat.about("stalls"):
            result.goes_on += 1.0
            script.at(result.goes_on, go_on)
            return
        stalls.order("go")
        latest = result.goes_on + STALL_SECONDS + BUSY_SECONDS
        script.between(result.goes_on, latest, "stall over", in_chat("stalls", "resolved"))

    script.at(BEGIN + FLOOR / 2, expect_the_stall)
    script.between(BEGIN, BEGIN + 45 + BUSY_SECONDS, "the agent has ended", lambda: finishes.ended)
    script.between(BEGIN + 30, BEGIN + 60 + BUSY_SECONDS, "agent gone", in_chat("vanishes"))
    result.met = script.run(settle=8)
    return result


def test_crash_is_in_chat_within_fifteen_seconds_and_once(played: Played) -> None:
    print(f"crash to chat: {played.met['crash in chat'] - BEGIN:.1f} s")
    print(f"crash to chat by the agent itself: {played.met['crash from the agent'] - BEGIN:.1f} s")
    (message,) = played.about("crashes")  # one message, although several alerts fire for the crash
    assert (message["severity"], message["status"], message["outcome"]) == ("critical", "resolved", "crashed")
    assert message["rule"] == "cuda-oom"
    assert "CUDA error: out of memory" in message["text"]  # the evidence, which no alert contains
    assert "1. " in message["text"]  # the first step of the fix
    assert "Rule: stallwatch rules show cuda-oom" in message["text"]
    assert played.crashed.ended and "failed" in played.crashed.said
    assert [item["outcome"] for item in played.about("reported-by-its-agent")] == ["crashed"]


def test_stall_is_in_chat_fifteen_seconds_after_its_threshold_and_its_end_too(played: Played) -> None:
    print(f"threshold to chat: {played.met['stall in chat'] - BEGIN - played.threshold:.1f} s")
    print(f"recovery to chat: {played.met['stall over'] - played.goes_on:.1f} s")
    opened, ended = played.about("stalls")
    assert (opened["kind"], opened["rule"]) == ("stall", "silent-hang-no-error")
    allowed = (
        f"The stall threshold, learned from this run's steps, is {played.threshold:.0f} s.",
        f"Stallwatch waits at least {played.threshold:.0f} s before",  # the threshold may be the floor
    )
    assert any(words in opened["text"] for words in allowed), opened["text"]
    assert opened["id"] == ended["id"]
    assert "recovered" in ended["title"]


def test_lost_agent_is_reported_and_a_finished_run_is_not(played: Played) -> None:
    found = played.about("vanishes", "finishes")
    assert [(item["run"], item["rule"]) for item in found] == [("vanishes", "StallwatchAgentGone")]
    (message,) = found
    assert message["kind"] == "alert"
    assert "docs/alerts.md#stallwatchagentgone" in message["text"]


def test_stall_is_one_message_and_its_end_one_although_the_relay_has_its_own_database(
    stack: Any, tmp_path: Path
) -> None:
    """Without the incident, the relay sends the alerts themselves, and only Alertmanager joins them."""
    stack.environ_of("relay", STALLWATCH_HOME=str(tmp_path / "relay"))
    stack.start("alertmanager", "relay", "prometheus")
    run = stack.train("stalls")
    stack.until_known("stalls", steps=TAUGHT_STEPS)
    for order, status in (("stall", "open"), ("go", "resolved")):
        run.order(order)
        deadline = time.monotonic() + 60.0 + STALL_SECONDS + BUSY_SECONDS
        while not stack.chat.about("stalls", status) and time.monotonic() < deadline:
            time.sleep(0.1)
    time.sleep(15)  # for the alerts that end later
    found = [(message["rule"], message["status"]) for message in stack.chat.messages]
    assert found == [("silent-hang-no-error", status) for status in ("open", "resolved")]
