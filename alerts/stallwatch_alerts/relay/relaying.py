"""What becomes of a notification: read, joined, written for each chat and kept, before we say "yes"."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.exc import IntegrityError

from stallwatch_alerts.relay.dispatching import Dispatcher, Tally
from stallwatch_alerts.relay.joining import WATCHDOG, Story, doubt, stories
from stallwatch_alerts.relay.webhook import read_notification
from stallwatch_exporter import steady

if TYPE_CHECKING:
    from stallwatch_alerts.delivery.outbox import Outbox
    from stallwatch_alerts.delivery.planning import Called, Draft, Told
    from stallwatch_alerts.relay.webhook import Alert
    from stallwatch_alerts.store import IncidentStore
    from stallwatch_exporter.incident import Incident

_INCIDENTS = 200  # of one run: the newest
_TRIES = 3
_YOUNG_SECONDS = 5.0
_LOOK_SECONDS = 0.25
_MOST_WAITING = 32  # requests; in a burst the others go on with what is known


@dataclass(frozen=True)
class Receipt:
    """What became of a notification that was taken."""

    tally: Tally
    doubts: tuple[str, ...] = ()  #: alerts that are told, although something about them is odd
    problems: tuple[str, ...] = ()  #: alerts that could not be understood, and are not told


class Relaying:
    """Takes notifications in, from several threads, and beside other relays on the same database."""

    def __init__(
        self,
        store: IncidentStore,
        outbox: Outbox,
        dispatcher: Dispatcher,
        clock: Callable[[], float] = steady.now,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._dispatcher = dispatcher
        self._clock = clock
        self._pause = pause
        self._waiting = threading.BoundedSemaphore(_MOST_WAITING)
        self.watchdog_at: float | None = None  #: steady time; None where it is not heard

    def receive(self, body: bytes) -> Receipt:
        """Take in a notification: what became of it. All messages are on disk when this returns.

        `WebhookProblem` where it is none; anything else that is raised means that nothing was kept, and that
        the sender should try again.
        """
        notification = read_notification(body)
        found = self._joined(notification.alerts)
        tally = self._kept(found) if found else Tally()
        watchdogs = [alert.firing for alert in notification.alerts if alert.name == WATCHDOG]
        if watchdogs:  # none ends by itself: an end means that its Prometheus fell silent, another may speak
            self.watchdog_at = self._clock() if any(watchdogs) else None
        doubts = tuple(dict.fromkeys(filter(None, map(doubt, notification.alerts))))
        return Receipt(tally, doubts, notification.problems)

    def _joined(self, alerts: Sequence[Alert]) -> list[Story]:
        """The stories. A young alert may be here before its incident, which the agent writes beside us.

        Where there is no common database none will come: then this costs a few seconds, once for each alert.
        """
        found = stories(alerts, self._incidents)
        if not any(self._is_early(story) for story in found) or not self._waiting.acquire(blocking=False):
            return found
        try:
            while any(self._is_early(story) for story in found):
                self._pause(_LOOK_SECONDS)
                found = stories(alerts, self._incidents)
        finally:
            self._waiting.release()
        return found

    def _is_early(self, story: Story) -> bool:
        return story.unjoined and 0 <= steady.wall(self._clock()) - story.alert.started < _YOUNG_SECONDS

    def _kept(self, found: Sequence[Story]) -> Tally:
        over = [story.subject.id for story in found if story.subject.is_settled]
        for left in reversed(range(_TRIES)):
            tally, now = Tally(), self._clock()

            def make(told: Told, called: Called, at: float = steady.wall(now)) -> list[Draft]:
                nonlocal tally
                drafts, tally = self._dispatcher.drafts(found, told, called, at)
                return drafts

            try:
                self._outbox.put(make, now, over)
                return tally
            except (
                IntegrityError
            ):  # another relay told the same meanwhile: look again at what is left to tell
                if not left:
                    raise
        return Tally()

    def _incidents(self, run: str) -> list[Incident]:
        return self._store.list(run=run, limit=_INCIDENTS)
