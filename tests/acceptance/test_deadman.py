"""The relay pings a dead man's switch until Prometheus is gone."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from deadmanswitch import Switch

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

# Alertmanager drops an alert 4 × 10 s after its last arrival, and reports that at the next group interval.
SILENT_AFTER = 4 * 10 + 30 + 60
BLIND = "no ping is sent to the dead man's switch: the alert StallwatchWatchdog is not firing"


def play(stack: Any, script: Any) -> tuple[int, int]:
    """Return the number of pings before the alarm that pings stopped, and the number some time later."""
    with contextlib.closing(Switch()) as switch:
        stack.environ_of(
            "relay", STALLWATCH_ALERTS_DEADMAN_URL=switch.url, STALLWATCH_ALERTS_DEADMAN_SECONDS="1"
        )
        stack.start("alertmanager", "relay")
        script.at(4, lambda: stack.start("prometheus"))
        script.between(4, 90, "the watchdog came all the way", lambda: switch.pinged)
        script.run()
        found = stack.said("relay").count(BLIND)  # an alarm from before the first ping
        script.at(0, lambda: stack.stop("prometheus"))
        script.between(5, SILENT_AFTER, "blind", lambda: stack.said("relay").count(BLIND) > found)
        script.run()
        pings = len(switch.pinged)  # the alarm came after the answer to the last ping
        script.run(settle=5)
        return pings, len(switch.pinged)


def test_pings_stop_when_prometheus_stops(waited: tuple[int, int]) -> None:
    pings, later = waited
    assert later == pings
