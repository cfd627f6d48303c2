"""Answers of a relay to requests that it accepts in part or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from alertmanager import Post, alert, group, posted

from stallwatch_alerts.relay.relay import Relay
from stallwatch_alerts.settings import AlertSettings, RelaySettings
from stallwatch_alerts.store import IncidentStore
from stallwatch_rules.pages.catalogue import Catalogue


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"not json", 400),
        (b"\xff\xfe", 400),
        (b"{}", 400),
        (group(version="3"), 400),
        (group(), 200),  # an empty group
        (group(newKey="of a later version"), 200),
    ],
)
def test_invalid_notification_is_refused_permanently(start: Any, body: bytes, status: int) -> None:
    assert start()(body) == status


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"startsAt": "yesterday"}, "startsAt 'yesterday' is not a time"),
        ({"startsAt": "2026-11-21T07:12:13"}, "is not a time"),  # no time zone
        ({"status": "maybe"}, "status 'maybe' is neither firing nor resolved"),
        ({"labels": {"run": 7}}, "Expected `str`, got `int`"),
    ],
)
def test_invalid_alert_does_not_affect_the_others(
    start: Any, chat_server: Any, changes: dict[str, Any], wrong: str
) -> None:
    post = start()
    both = group(alert("StallwatchRankGone") | changes, alert("StallwatchAgentGone"))
    status, text = post.answer(both)
    assert status == 400
    assert "alerts[0]: " in text and wrong in text and "the other alerts are stored: 1 new" in text
    assert posted(chat_server, 1) == [("alert", "StallwatchAgentGone", "open")]
    assert 'outcome="refused"} 1.0' in post.answer(None, "/metrics")[1]


def test_unknown_severity_counts_as_warning_and_is_reported_once(
    store: IncidentStore, catalogue: Catalogue, chat_server: Any
) -> None:
    said: list[str] = []
    settings = RelaySettings(port=0, alerts=AlertSettings(urls=(chat_server.url,)))
    relay = Relay(settings, store, catalogue, report=said.append)
    try:
        post = Post(relay)
        paged, bare = alert("StallwatchPaged", severity="page"), alert("StallwatchBare")
        del bare["labels"]["severity"]
        for what in ("2 new", "2 repeated"):
            status, text = post.answer(group(paged, bare))
            assert (status, text.splitlines()[0]) == (200, f"stored: {what}")
            assert "StallwatchPaged: severity 'page' is unknown; using warning" in text
            assert "StallwatchBare: the alert has no severity; using warning" in text
        chat_server.wait_for_requests(1)
        assert chat_server.bodies[0]["severity"] == "warning"
        assert [line.split(":")[0] for line in said] == ["StallwatchPaged", "StallwatchBare"]
    finally:
        relay.close()


def test_token_is_required(start: Any, chat_server: Any) -> None:
    post = start(token="s3cr3t")
    body = group(alert("StallwatchRankGone"))
    assert post(body) == 401
    assert post(body, headers={"Authorization": "Bearer wrong"}) == 401
    assert post(None, "/api/messages") == 401
    assert post(None, "/-/healthy") == 200
    assert post(body, headers={"Authorization": "Bearer s3cr3t"}) == 200
    assert posted(chat_server, 1) == [("alert", "StallwatchRankGone", "open")]


def test_other_requests_get_a_hint(start: Any) -> None:
    post = start()
    assert post(group(), "/webhook") == 404
    assert post(None, "/") == 404
    status, text = post.answer(b"x" * 10, headers={"Content-Length": str(1 << 30)})
    assert status == 413 and "max_alerts" in text
