"""What Alertmanager posts to a webhook, version 4.

The form is Alertmanager's ``notify/webhook/webhook.go`` (``Message``) around ``template/template.go``
(``Data``, ``Alert``), the same in 0.25 and 0.28. Keys that later versions add are ignored.
"""

from __future__ import annotations

import re
from datetime import datetime

import msgspec

VERSION = "4"
_FRACTION = re.compile(r"\.(\d+)")  # Go prints up to nanoseconds, Python before 3.11 reads microseconds


class WebhookProblem(ValueError):
    """The body is no notification that we understand; sending it again would not help."""


class Alert(msgspec.Struct, frozen=True, rename="camel"):
    """One alert of a group."""

    status: str  #: firing, resolved
    labels: dict[str, str]
    annotations: dict[str, str] = {}
    starts_at: str = ""
    ends_at: str = ""
    generator_url: str = msgspec.field(default="", name="generatorURL")
    fingerprint: str = ""

    @property
    def name(self) -> str:
        """Such as ``StallwatchStalled``."""
        return self.labels.get("alertname", "")

    @property
    def started(self) -> float:
        """Unix time at which it began to fire; 0 where the alert does not tell."""
        text = _FRACTION.sub(lambda found: f".{found[1]:0<6.6}", self.starts_at.replace("Z", "+00:00"))
        try:
            return datetime.fromisoformat(text).timestamp()
        except ValueError:
            return 0.0

    @property
    def firing(self) -> bool:
        """Whether it is still so."""
        return self.status == "firing"


class Notification(msgspec.Struct, frozen=True, rename="camel"):
    """A group of alerts, told together."""

    version: str
    group_key: str
    status: str
    receiver: str = ""
    alerts: list[Alert] = []
    truncated_alerts: int = 0
    group_labels: dict[str, str] = {}
    external_url: str = msgspec.field(default="", name="externalURL")


def read_notification(body: bytes) -> Notification:
    """The notification in a request's body; a `WebhookProblem` tells why it is none."""
    try:
        found = msgspec.json.decode(body, type=Notification)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WebhookProblem(f"not a notification of Alertmanager: {error}") from error
    if found.version != VERSION:
        raise WebhookProblem(f"version {found.version[:20]!r} of Alertmanager's webhook; known is {VERSION}")
    return found
