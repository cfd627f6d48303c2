"""Requests of Alertmanager to a relay, and the messages of the chat."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from stallwatch_alerts.relay.relay import Relay

STARTED = 1795245133.0  # start time of the alerts below


def alert(name: str = "StallwatchStalled", *, firing: bool = True, **labels: str) -> dict[str, Any]:
    """Return an alert in the format of Alertmanager."""
    given = {"alertname": name, "run": "myrun", "severity": "critical", **labels}
    return {
        "status": "firing" if firing else "resolved",
        "labels": given,
        "annotations": {
            "summary": f"{name} of myrun",
            "description": "What the rule file says.",
            "runbook_url": "https://example.org/runbook",
        },
        "startsAt": "2026-11-21T07:12:13.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z" if firing else "2026-11-21T07:13:13.1Z",
        "generatorURL": "http://prometheus:9090/graph?g0.expr=x",
        "fingerprint": f"{hash(tuple(sorted(given.items()))) & 0xFFFFFFFFFFFFFFFF:016x}",
    }


def group(*alerts: dict[str, Any], **changes: Any) -> bytes:
    """Return the body of a webhook request."""
    body = {
        "receiver": "stallwatch-relay",
        "status": "firing" if any(alert["status"] == "firing" for alert in alerts) else "resolved",
        "alerts": list(alerts),
        "groupLabels": {"run": "myrun"},
        "commonLabels": {"run": "myrun"},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager:9093",
        "version": "4",
        "groupKey": '{}:{run="myrun"}',
        "truncatedAlerts": 0,
        **changes,
    }
    return json.dumps(body).encode()


class Post:
    """Client that posts to a relay."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.relay.server.port}"

    def __call__(
        self, body: bytes | None, path: str = "/alertmanager", headers: dict[str, str] | None = None
    ) -> int:
        return self.answer(body, path, headers)[0]

    def answer(
        self, body: bytes | None, path: str = "/alertmanager", headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        request = urllib.request.Request(self.base + path, data=body, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def posted(chat_server: Any, count: int) -> list[tuple[str, str, str]]:
    """Return kind, rule, and status of the messages after `count` requests."""
    chat_server.wait_for_requests(count)
    return [(body["kind"], body["rule"], body["status"]) for body in chat_server.bodies]
