"""The relay routes alerts of a real Alertmanager, and escalates them if nobody acknowledges them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Any

import pytest

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

ESCALATE_SECONDS = 20.0
LONG_MINUTES = 30  # long enough for an acknowledgement on a busy machine


@dataclass
class Told:
    """Notified runs by chat, the relay's output, and withdrawn escalations."""

    boss: list[str]
    sweeps: list[str]
    everybody: list[str]
    relay: str
    withdrawn: list[str]


def play(stack: Any, script: Any) -> Told:
    """Raise alerts of five runs, one of which is acknowledged."""
    boss, sweeps = stack.another_chat(), stack.another_chat()
    stack.configure_relay(
        f"""
        [[alerts.routes]]
        runs = ["sweep-*"]
        urls = ["{sweeps.url}"]

        [[alerts.routes]]
        runs = ["cared-for"]
        escalate_minutes = {LONG_MINUTES}
        escalate_urls = ["{boss.url}"]

        [[alerts.routes]]
        severities = ["critical"]
        escalate_minutes = {ESCALATE_SECONDS / 60}
        escalate_urls = ["{boss.url}"]

        [[alerts.routes]]
        families = ["memory"]
        urls = []
        """
    )
    stack.start("alertmanager", "relay")

    def alerts(*arguments: str) -> str:
        command = [stack.stallwatch, "alerts", *arguments]
        environ = {**stack.around, **stack.environ(chats=False)}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    gone = {"alertname": "StallwatchAgentGone", "severity": "critical"}
    stack.raise_alerts(
        {**gone, "run": "lost"},
        {**gone, "run": "cared-for"},
        {**gone, "run": "sweep-1"},
        {"alertname": "StallwatchSlowdown", "run": "slow", "severity": "sev3"},
        {"alertname": "StallwatchCudaOom", "rule": "cuda-oom", "run": "fits", "severity": "warning"},
    )
    for run in ("lost", "cared-for", "slow"):
        script.between(0, 120, f"{run} to everybody", lambda run=run: stack.chat.about(run))
    script.between(0, 120, "to the sweeps' chat", lambda: sweeps.about("sweep-1"))
    script.run()
    alerts("ack", "cared-for")
    waiting = alerts("deliveries", "--run", "cared-for").splitlines()
    script.between(0, ESCALATE_SECONDS + 120, "escalated", lambda: boss.about("lost"))
    script.run(settle=5)
    return Told(
        [message["run"] for message in boss.messages],
        [message["run"] for message in sweeps.messages],
        sorted(message["run"] for message in stack.chat.messages),
        stack.said("relay"),
        [line for line in waiting if "withdrawn" in line],
    )


def test_relay_routes_alerts_and_escalates_unacknowledged_ones(waited: Told) -> None:
    (withdrawn,) = waited.withdrawn
    assert "acknowledged" in withdrawn
    assert waited.boss == ["lost"]
    assert waited.sweeps == ["sweep-1"]
    assert waited.everybody == ["cared-for", "lost", "slow"]
    assert "StallwatchSlowdown: severity 'sev3' is unknown; using warning" in waited.relay
