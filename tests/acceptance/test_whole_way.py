"""`stallwatch alerts test --through prometheus` delivers a message or names the broken link."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

FREE_PORT = 19_999  # a port that no server of the stack uses, so that nothing scrapes it


def try_it(stack: Any, *arguments: str, wait: int = 120) -> tuple[int, list[str]]:
    """Return the exit code, and one line for each link."""
    done = subprocess.run(
        [
            *(stack.stallwatch, "alerts", "test", "--through", "prometheus"),
            *("--prometheus", stack.url("prometheus"), "--relay", stack.url("relay")),
            *("--port", str(stack.ports["agent"]), "--wait", str(wait), *arguments),
        ],
        env=stack.environ(chats=True) | {"PATH": ""},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout.splitlines()


def test_message_arrives_or_the_broken_link_is_named(stack: Any) -> None:
    stack.start("alertmanager", "relay", "prometheus")

    code, lines = try_it(stack)
    assert (code, [line.split()[0] for line in lines]) == (0, ["ok"] * 8), lines
    (message,) = stack.chat.messages
    assert (message["kind"], message["run"][:11]) == ("test", "alert-test-")
    assert "s3cr3t" not in "".join(lines)

    code, lines = try_it(stack, "--port", str(FREE_PORT), wait=2)
    assert (code, len(lines)) == (1, 5)
    assert lines[-1].startswith("failed  Prometheus scrapes the metric: no target of ")

    stack.chat.refuse = 403
    code, lines = try_it(stack, wait=25)  # the command waits up to 25 s for the chat
    assert (code, len(lines)) == (1, 8)
    assert "did not accept the message" in lines[-1] and "403" in lines[-1] and "s3cr3t" not in lines[-1]
    stack.chat.refuse = 0

    silence = ["amtool", "--alertmanager.url", stack.url("alertmanager"), "silence", "add"]
    subprocess.run(
        [*silence, "alertname=StallwatchTest", "--comment=night", "--author=me"],
        check=True,
        capture_output=True,
    )
    code, lines = try_it(stack)
    assert code == 1
    assert lines[-1].endswith("suppresses the alert, because a silence matches it")

    stack.stop("relay")
    code, lines = try_it(stack, wait=2)
    assert code == 1
    assert lines[-1].startswith("failed  the relay responds: ") and "start `stallwatch relay`" in lines[-1]

    stack.stop("alertmanager")
    code, lines = try_it(stack, wait=2)
    assert (code, len(lines)) == (1, 2)
    assert lines[-1].startswith("failed  Prometheus sends alerts to an Alertmanager: ")

    stack.stop("prometheus")
    code, lines = try_it(stack, wait=2)
    assert (code, len(lines)) == (1, 1)
    assert "Connection refused" in lines[-1]


def test_missing_rules_in_prometheus_are_reported_with_the_remedy(stack: Any) -> None:
    config = stack.folder / "prometheus.yml"
    lines = [line for line in config.read_text().splitlines() if not line.endswith("alerting.yml")]
    config.write_text("\n".join(lines) + "\n")
    stack.start("prometheus")
    code, said = try_it(stack, wait=2)
    assert (code, len(said)) == (1, 1)
    assert "has no rule StallwatchTest; run `stallwatch rules export --prometheus DIR`" in said[0]
