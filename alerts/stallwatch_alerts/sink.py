"""Incidents to chats: one thread per URL, so that a dead chat neither delays another nor the run."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from stallwatch_alerts.channels.notice import Notice, incident_notice
from stallwatch_alerts.masking import mask_url
from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.worker import Worker
from stallwatch_exporter.incident import Incident

if TYPE_CHECKING:
    from stallwatch_rules.catalogue import Catalogue

_ORDER = {"info": 0, "warning": 1, "critical": 2}
_REMEMBERED = 10_000


class Channel(Protocol):
    """Where notices go; see ``channels``."""

    name: str

    def send(self, notice: Notice) -> None:
        """Deliver, or raise with a reason that holds no secret."""


@dataclass(frozen=True)
class Retry:
    """How often a notice is tried, and how long is waited in between: doubling, with jitter."""

    attempts: int = 8
    first_wait: float = 1.0
    longest_wait: float = 60.0

    def wait(self, failures: int, chance: float) -> float:
        """Seconds before the next try; `chance` in 0..1 spreads agents that were refused together."""
        full = min(self.longest_wait, self.first_wait * 2.0 ** (failures - 1))
        return full * (0.5 + 0.5 * chance)


class ChatSink:
    """Told of every change of an incident; sends on open and on resolve. Never blocks, never raises.

    `report` is told, from another thread, of URLs that cannot be used and of messages that were not taken.
    """

    def __init__(
        self,
        settings: AlertSettings,
        catalogue: Catalogue,
        *,
        retry: Retry | None = None,
        report: Callable[[str], None] = lambda _: None,
        connect: Callable[[str], Channel] | None = None,
    ) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._failed = 0
        self._couriers = [
            _Courier(url, connect or _apprise_channel, retry or Retry(), report) for url in settings.urls
        ]

    def __call__(self, incident: Incident) -> None:
        """Queue a message where this change deserves one."""
        try:
            if not self._deserves_message(incident):
                return
            page = self._catalogue.pages.get(incident.rule)
            notice = incident_notice(incident, self._settings.language, page)
        except Exception:
            self._failed += 1
            return
        for courier in self._couriers:
            courier.put(notice)

    def close(self, timeout: float) -> bool:
        """Send what is queued within `timeout` seconds in all; whether everything left."""
        deadline = time.monotonic() + timeout
        left = [courier.close(max(0.0, deadline - time.monotonic())) for courier in self._couriers]
        return all(left)

    @property
    def sent(self) -> int:
        """Messages delivered, over all URLs."""
        return sum(courier.sent for courier in self._couriers)

    @property
    def failed(self) -> int:
        """Messages given up, over all URLs."""
        return self._failed + sum(courier.failed for courier in self._couriers)

    def _deserves_message(self, incident: Incident) -> bool:
        """Once per status and episode. A resolve is told to whoever was told of the opening."""
        key = (incident.id, incident.status)
        if key in self._told:
            return False
        severe = _ORDER.get(incident.severity, 0) >= _ORDER[self._settings.min_severity]
        if not severe and (incident.id, "open") not in self._told:
            return False
        self._told[key] = None
        while len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        return True


class _Courier:
    """One URL's queue, tries and counters. It connects in its own thread: imports take their time."""

    def __init__(
        self, url: str, connect: Callable[[str], Channel], retry: Retry, report: Callable[[str], None]
    ) -> None:
        self.sent = 0
        self._given_up = 0
        self._url = url
        self._connect = connect
        self._channel: Channel | None = None
        self._retry = retry
        self._tell = report
        self._worker: Worker[Notice] = Worker(
            f"stallwatch-chat {mask_url(url)}", self._deliver, begin=self._open
        )

    @property
    def failed(self) -> int:
        return self._given_up + self._worker.dropped + self._worker.failed

    def put(self, notice: Notice) -> None:
        self._worker.put(notice)

    def close(self, timeout: float) -> bool:
        return self._worker.close(timeout) and self.failed == 0

    def _report(self, text: str) -> None:
        with contextlib.suppress(Exception):  # whoever cannot be told must not cost a message its next try
            self._tell(text)

    def _open(self) -> None:
        try:
            self._channel = self._connect(self._url)
        except Exception as error:
            self._report(f"{mask_url(self._url)} cannot be used: {error}")

    def _deliver(self, notice: Notice, give_up: threading.Event) -> None:
        if self._channel is None:
            self._given_up += 1
            return
        for failures in range(1, self._retry.attempts + 1):
            try:
                self._channel.send(notice)
            except Exception as error:
                if failures == 1:
                    self._report(f"{self._channel.name} did not take a message, trying again: {error}")
                last = failures == self._retry.attempts
                if last or give_up.wait(self._retry.wait(failures, random.random())):
                    self._given_up += 1
                    self._report(f"{self._channel.name}: gave up {notice.message.title!r}: {error}")
                    return
            else:
                self.sent += 1
                return


def _apprise_channel(url: str) -> Channel:
    # Apprise takes half a second to import: only who has URLs pays for it.
    try:
        from stallwatch_alerts.channels.apprise_channel import AppriseChannel
    except ModuleNotFoundError as error:
        raise RuntimeError(f"{error.name} is not installed; pip install 'stallwatch[alerts]'") from error
    return AppriseChannel(url)
