"""A relay's reports on itself: its log of deliveries, its metrics, and its blindness."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from alertmanager import alert, group


def test_log_and_metrics_of_deliveries_contain_no_secret(start: Any, chat_server: Any) -> None:
    chat_server.answers = [500]
    post = start()
    post(group(alert("StallwatchRankGone")))
    post(group(alert("StallwatchWatchdog")))
    chat_server.wait_for_requests(2)
    post.relay.close()
    (message,) = [vars_of(item) for item in post.relay._messages("myrun")]
    assert (message["state"], message["attempts"]) == ("sent", 2)
    assert message["name"].endswith("/****") and "s3cr3t" not in json.dumps(message)


def vars_of(delivery: Any) -> dict[str, Any]:
    import dataclasses

    return dataclasses.asdict(delivery)


def test_metrics_count_alerts_and_deliveries(start: Any, chat_server: Any) -> None:
    post = start()
    post(group(alert("StallwatchRankGone"), alert("StallwatchWatchdog")))
    post(b"nonsense")
    chat_server.wait_for_requests(1)
    status, text = post.answer(None, "/metrics")
    assert status == 200
    assert 'stallwatch_relay_notifications_total{outcome="stored"} 1.0' in text
    assert 'stallwatch_relay_notifications_total{outcome="refused"} 1.0' in text
    assert "stallwatch_relay_watchdog_timestamp_seconds 1." in text


def test_relay_is_blind_without_the_watchdog_alert(start: Any) -> None:
    post = start(watchdog_seconds=300)
    relay = post.relay
    assert "StallwatchWatchdog is not firing" in relay.blind()
    post(group(alert("StallwatchWatchdog")))
    assert relay.blind() == ""
    # Alertmanager has not received the watchdog for a while
    post(group(alert("StallwatchWatchdog", firing=False)))
    assert "StallwatchWatchdog is not firing" in relay.blind()
    post(group(alert("StallwatchWatchdog")))
    relay._intake.watchdog_at -= 301
    assert "5 min" in relay.blind()
    # One of two Prometheus servers fell silent or was replaced; the other one still sends.
    heard, silent = (alert("StallwatchWatchdog", firing=firing) for firing in (True, False))
    for alerts in ((heard, silent), (silent, heard)):
        post(group(*alerts))
        assert relay.blind() == ""


def test_blindness_is_measured_with_the_monotonic_clock(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock is set back by the same time that passes."""
    relay = start(watchdog_seconds=300).relay
    relay._intake.receive(group(alert("StallwatchWatchdog")))
    for sender in relay._senders:
        sender.close(120)
    monkeypatch.setattr(type(relay._senders[0]), "alive", True)
    assert relay.blind() == ""
    tick = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: tick() + 290)
    assert "no longer sent" in relay.blind()
    monkeypatch.setattr(time, "monotonic", lambda: tick() + 310)
    assert "5 min" in relay.blind()
