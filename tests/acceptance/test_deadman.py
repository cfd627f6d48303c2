"""The relay's dead-man's switch hears that all is well, until Prometheus is gone."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from deadmanswitch import Switch

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

# Alertmanager forgets an alert 4 × 10 s after it came last, and tells of that with its group's interval.
SILENT_AFTER = 4 * 10 + 30 + 60
BLIND = "the dead-man's switch gets no ping: StallwatchWatchdog does not fire here"


def play(stack: Any, script: Any) -> tuple[int, int]:
    """How many pings came until it was told that none came any more, and how many some time later."""
    with contextlib.closing(Switch()) as switch:
        stack.environ_of(
            "relay", STALLWATCH_ALERTS_DEADMAN_URL=switch.url, STALLWATCH_ALERTS_DEADMAN_SECONDS="1"
        )
        stack.start("alertmanager", "relay")
        script.at(4, lambda: stack.start("prometheus"))
        script.between(4, 90, "the watchdog came all the way", lambda: switch.pinged)
        script.run()
        told = stack.said("relay").count(BLIND)  # before the first one came it had not, either
        script.at(0, lambda: stack.stop("prometheus"))
        script.between(5, SILENT_AFTER, "blind", lambda: stack.said("relay").count(BLIND) > told)
        script.run()
        pings = len(switch.pinged)  # it was told after the last one had been answered
        script.run(settle=5)
        return pings, len(switch.pinged)


def test_the_pings_stop_when_prometheus_does(waited: tuple[int, int]) -> None:
    pings, later = waited
    assert later == pings
