"""Parse the requests that Alertmanager posts to a webhook (format version 4).

Alertmanager defines the format in ``notify/webhook/webhook.go`` (``Message``) and ``template/template.go``
(``Data``, ``Alert``). The format is the same in Alertmanager 0.25 and 0.28. Keys that later versions add
are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import msgspec

from stallwatch_rules.decoding import from_json
from stallwatch_rules.text.foreign_json import NOT_JSON
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.redact import redact

VERSION = "4"
_FRACTION = lazy(r"\.(\d+)")  # Go prints up to nine digits, but Python 3.10 reads only six


class WebhookProblem(ValueError):
    """Raised if a request's body is not a readable notification. A retry would not help."""


class Alert(msgspec.Struct, frozen=True, rename="camel"):
    """One alert in a notification."""

    status: str  #: "firing" or "resolved"
    labels: dict[str, str]
    annotations: dict[str, str] = {}
    starts_at: str = ""
    ends_at: str = ""
    fingerprint: str = ""

    @property
    def name(self) -> str:
        """The name of the alert, such as ``StallwatchStalled``."""
        return self.labels.get("alertname", "")

    @property
    def started(self) -> float:
        """The Unix time when the alert began to fire, or 0 if the time is unknown."""
        return max(0.0, _moment(self.starts_at) or 0.0)

    @property
    def firing(self) -> bool:
        """True while the alert is firing."""
        return self.status == "firing"


class _Envelope(msgspec.Struct, frozen=True, rename="camel"):
    """The body of a request, in which the alerts have not been decoded yet."""

    version: str
    group_key: str
    status: str
    alerts: list[msgspec.Raw] = []


@dataclass(frozen=True)
class Notification:
    """The readable alerts of one group, which Alertmanager sent in one request."""

    alerts: tuple[Alert, ...]
    problems: tuple[str, ...] = ()  #: the errors in the unreadable alerts of the group


def read_notification(body: bytes) -> Notification:
    """Return the notification in a request's body. Raise `WebhookProblem` if the body is unreadable.

    An unreadable alert does not affect the other alerts.
    """
    try:
        found = from_json(body, _Envelope)
    except NOT_JSON as error:
        raise WebhookProblem(f"not a notification from Alertmanager: {error}") from error
    if found.version != VERSION:
        raise WebhookProblem(
            f"unsupported version {found.version[:20]!r} of Alertmanager's webhook; expected {VERSION}"
        )
    alerts, problems = [], []
    for number, raw in enumerate(found.alerts):
        try:
            alerts.append(_read_alert(raw))
        except NOT_JSON as error:
            problems.append(f"alerts[{number}]: {error}")
    return Notification(tuple(alerts), tuple(problems))


def _read_alert(raw: msgspec.Raw) -> Alert:
    alert = from_json(raw, Alert)
    if alert.status not in ("firing", "resolved"):
        raise WebhookProblem(f"status {alert.status[:40]!r} is neither firing nor resolved")
    for key, text in (("startsAt", alert.starts_at), ("endsAt", alert.ends_at)):
        if text and _moment(text) is None:
            raise WebhookProblem(f"{key} {text[:40]!r} is not a time such as 2026-11-21T07:12:13Z (RFC 3339)")
    labels, annotations = (
        {name: redact(text) for name, text in texts.items()} for texts in (alert.labels, alert.annotations)
    )
    return msgspec.structs.replace(alert, labels=labels, annotations=annotations)


def _moment(text: str) -> float | None:
    """Return the Unix time of a timestamp printed by Go, or ``None`` if it is invalid or has no time zone."""
    try:
        found = datetime.fromisoformat(
            _FRACTION.sub(lambda digits: f".{digits[1]:0<6.6}", text.replace("Z", "+00:00"))
        )
    except ValueError:
        return None
    return None if found.tzinfo is None else found.timestamp()
