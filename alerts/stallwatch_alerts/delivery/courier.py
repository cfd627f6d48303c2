"""Messages without a disk: one URL's queue in memory, for when there is no spool or it takes nothing."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from stallwatch_alerts.channels.notice import Notice
from stallwatch_alerts.delivery.channel import Channel, retry_after
from stallwatch_alerts.masking import mask_url
from stallwatch_alerts.worker import Worker


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


class Courier:
    """One URL's queue, tries and counters. It connects in its own thread: imports take their time."""

    def __init__(
        self,
        url: str,
        connect: Callable[[str], Channel],
        retry: Retry,
        report: Callable[[str], None],
        delivered: Callable[[str, Notice], None] | None,
    ) -> None:
        self.sent = 0
        self._given_up = 0
        self._url = url
        self._connect = connect
        self._channel: Channel | None = None
        self._retry = retry
        self._tell = report
        self._delivered = delivered
        self._worker: Worker[Notice] = Worker(
            f"stallwatch-chat {mask_url(url)}", self._deliver, begin=self._open
        )

    @property
    def failed(self) -> int:
        """Messages given up."""
        return self._given_up + self._worker.dropped + self._worker.failed

    def put(self, notice: Notice) -> None:
        """Queue it."""
        self._worker.put(notice)

    def close(self, timeout: float) -> bool:
        """Send what is queued within `timeout` seconds; whether everything left."""
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
                wait = max(self._retry.wait(failures, random.random()), retry_after(error) or 0.0)
                if last or give_up.wait(wait):
                    self._given_up += 1
                    self._report(f"{self._channel.name}: gave up {notice.message.title!r}: {error}")
                    return
            else:
                self.sent += 1
                if self._delivered is not None:
                    with contextlib.suppress(Exception):  # it did arrive
                        self._delivered(self._url, notice)
                return
