"""What becomes of a notification: read, joined, written for each chat and kept, before we say "yes"."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy.exc import IntegrityError

from stallwatch_alerts.delivery.fingerprint import fingerprint
from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.records import Draft
from stallwatch_alerts.endings import telling
from stallwatch_alerts.masking import mask_url
from stallwatch_alerts.relay.composing import Composer
from stallwatch_alerts.relay.joining import TEST, WATCHDOG, Story, stories
from stallwatch_alerts.relay.webhook import read_notification

if TYPE_CHECKING:
    from stallwatch_alerts.relay.webhook import Alert
    from stallwatch_alerts.settings import AlertSettings
    from stallwatch_alerts.store import IncidentStore
    from stallwatch_exporter.incident import Incident

_ORDER = {"info": 0, "warning": 1, "critical": 2}
_INCIDENTS = 200  # of one run: the newest
_TRIES = 3
_NO_RUN = "-"
_YOUNG_SECONDS = 5.0
_LOOK_SECONDS = 0.25
_MOST_WAITING = 32  # requests; in a burst the others go on with what is known

Told = Callable[[str, Iterable[str]], set[str]]


class Relaying:
    """Takes notifications in, from several threads, and beside other relays on the same database."""

    def __init__(
        self,
        settings: AlertSettings,
        store: IncidentStore,
        outbox: Outbox,
        composer: Composer,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._store = store
        self._outbox = outbox
        self._composer = composer
        self._clock = clock
        self._pause = pause
        self._waiting = threading.BoundedSemaphore(_MOST_WAITING)
        self._chats = [(fingerprint(url), mask_url(url)) for url in settings.urls]
        self.watchdog_at: float | None = None  #: when it was heard last; None where it is not heard

    def receive(self, body: bytes) -> int:
        """Take in a notification: how many messages it made. All of them are on disk when this returns.

        `WebhookProblem` where it is none; anything else that is raised means that nothing was kept, and that
        the sender should try again.
        """
        notification = read_notification(body)
        found = self._joined(notification.alerts)
        kept = self._kept(found) if found else 0
        for alert in notification.alerts:
            if alert.name == WATCHDOG:  # it never ends by itself: an end means that Prometheus fell silent
                self.watchdog_at = self._clock() if alert.firing else None
        return kept

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
        return story.unjoined and 0 <= self._clock() - story.alert.started < _YOUNG_SECONDS

    def _kept(self, found: Sequence[Story]) -> int:
        for left in reversed(range(_TRIES)):
            try:
                return len(self._outbox.put(lambda told: self._drafts(found, told), self._clock()))
            except (
                IntegrityError
            ):  # another relay told the same meanwhile: look again at what is left to tell
                if not left:
                    raise
        return 0

    def _drafts(self, found: Sequence[Story], told: Told) -> list[Draft]:
        drafts = []
        for channel, name in self._chats:
            known = told(channel, [key for story in found for key in (story.key, story.opening)])
            group = [story for story in found if self._is_news(story, known)]
            if group:
                notice = self._composer(group)
                keys = tuple(dict.fromkeys(story.key for story in group))
                drafts.append(Draft(channel, name, group[0].run or _NO_RUN, notice, keys))
        return drafts

    def _is_news(self, story: Story, known: set[str]) -> bool:
        """Once; and the end to whoever heard of the beginning, or while the alert still fires."""
        if story.key in known:
            return False
        if story.over and story.opening in known:
            return True
        if story.over and not story.alert.firing:
            return False
        severe = _ORDER.get(story.severity, 0) >= _ORDER[self._settings.min_severity]
        return severe or story.alert.name == TEST

    def _incidents(self, run: str) -> list[Incident]:
        return [telling(incident) for incident in self._store.list(run=run, limit=_INCIDENTS)]
