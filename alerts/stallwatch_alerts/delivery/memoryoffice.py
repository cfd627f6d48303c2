"""Messages from memory: bounded, and gone with the process. For when there is no disk to keep them."""

from __future__ import annotations

import time

from stallwatch_alerts.channels.notice import Notice
from stallwatch_alerts.delivery.courier import Courier
from stallwatch_alerts.delivery.planning import Letter, Planner
from stallwatch_alerts.delivery.ways import Ways
from stallwatch_alerts.settings import AlertSettings
from stallwatch_exporter import steady


class MemoryOffice:
    """One courier for each chat. What is to be told later, such as an escalation, is not."""

    def __init__(self, settings: AlertSettings, planner: Planner, ways: Ways) -> None:
        self._planner = planner
        self._ways = ways
        self._couriers = {
            url: Courier(url, ways.connect, ways.retry, ways.report, self._told) for url in settings.all_urls
        }

    def put(self, letter: Letter) -> None:
        """Take it; never waits."""
        for url in self._planner.urls_now(letter, steady.wall(self._ways.clock())):
            self._couriers[url].put(letter.notice)

    def amend(self, notice: Notice) -> None:
        """What changes goes into the closing message."""

    @property
    def sent(self) -> int:
        """Messages delivered, over all URLs."""
        return sum(courier.sent for courier in self._couriers.values())

    @property
    def failed(self) -> int:
        """Messages given up, over all URLs."""
        return sum(courier.failed for courier in self._couriers.values())

    def kept(self) -> int:
        """Nothing is."""
        return 0

    def close(self, timeout: float) -> bool:
        """Send what is queued within `timeout` seconds in all; whether everything left."""
        deadline = time.monotonic() + timeout
        left = [courier.close(max(0.0, deadline - time.monotonic())) for courier in self._couriers.values()]
        return all(left)

    def _told(self, url: str, notice: Notice) -> None:
        if notice.key:
            self._ways.delivered(url, (notice.key,))
