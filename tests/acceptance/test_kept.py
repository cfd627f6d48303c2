"""Alerts that were raised during an outage of the relay or the chat are sent after it."""

from __future__ import annotations

import signal
from typing import Any

import pytest

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]


def play(stack: Any, script: Any) -> list[dict[str, Any]]:
    """Return the chat's messages about two runs: from before and after the relay's death."""
    stack.chat.refuse = 503
    stack.start("alertmanager", "relay", "prometheus")
    before, meanwhile = stack.train("before"), stack.train("meanwhile")
    stack.until_known("before", "meanwhile")

    def kill() -> None:
        stack.stop("relay", signal.SIGKILL)
        stack.chat.refuse = 0

    def known(run: str) -> bool:
        return run in stack.alerts()

    script.at(0, lambda: before.order("crash"))
    script.between(0, 60, "kept, and refused by the chat", lambda: stack.chat.refused)
    script.run()
    script.at(0, kill)
    script.at(0.5, lambda: meanwhile.order("crash"))
    script.between(0.5, 60, "in Alertmanager", lambda: known("meanwhile"))
    script.run(settle=2)
    script.at(0, lambda: stack.start("relay"))
    # The claim of the killed relay runs out after a minute, and later messages wait for it.
    script.between(0, 60 + 60, "report of what was kept", lambda: stack.chat.about("before", "resolved"))
    script.between(
        0, 60 + 90, "report of what came meanwhile", lambda: stack.chat.about("meanwhile", "resolved")
    )
    script.run(settle=3)
    return list(stack.chat.messages)


def test_killed_relay_loses_no_message(
    waited: list[dict[str, Any]],
) -> None:
    crashes = [message["run"] for message in waited if message["rule"] == "cuda-oom"]
    assert sorted(crashes) == ["before", "meanwhile"]
