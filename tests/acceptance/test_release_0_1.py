"""The Prometheus rules and configurations of release 0.1 alert on what this release exports."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

KEPT = Path(__file__).parents[1] / "release_0_1"
_WAIT = 120.0


def until(ask: Callable[[], Any]) -> None:
    """Wait until this is so."""
    deadline = time.monotonic() + _WAIT
    while not ask():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def old_stack(stack: Any) -> Any:
    """Servers that are configured as release 0.1 did it."""
    shutil.rmtree(stack.folder / "rules")
    stack.root = KEPT
    stack._configure()
    return stack


def test_rules_of_release_0_1_alert_on_a_stall_and_a_crash(old_stack: Any) -> None:
    old_stack.start("alertmanager", "relay", "prometheus")
    command = ["alerts", "test", "--through", "prometheus", "--prometheus", old_stack.url("prometheus")]
    port = ["--port", str(old_stack.ports["agent"]), "--wait", "1"]
    tested = subprocess.run(
        [old_stack.stallwatch, *command, *port],
        env=old_stack.environ(chats=True) | {"PATH": ""} | old_stack.around,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "of an older release, without StallwatchHostGone; export the rules again" in tested.stdout
    run = old_stack.train("upgraded")
    old_stack.until_known("upgraded")

    def firing(alert: str) -> bool:
        return bool(old_stack.number(f'ALERTS{{alertname="{alert}",alertstate="firing",run="upgraded"}}'))

    until(lambda: old_stack.number('run:stallwatch_stall_threshold_seconds:current{run="upgraded"}'))
    run.order("stall")
    until(lambda: firing("StallwatchStalled"))
    until(lambda: old_stack.chat.about("upgraded", kind="stall"))
    run.order("go")
    until(lambda: old_stack.chat.about("upgraded", "resolved", kind="stall"))
    run.order("crash")
    until(lambda: firing("StallwatchRunFailed") and firing("StallwatchCudaOom"))
    until(lambda: [item for item in old_stack.chat.messages if item["rule"] == "cuda-oom"])
    message = [item for item in old_stack.chat.messages if item["rule"] == "cuda-oom"][-1]
    assert message["outcome"] == "crashed"
