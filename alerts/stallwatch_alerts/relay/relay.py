"""Receive notifications from Alertmanager, store and send the messages, and ping a dead man's switch."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import IntegrityError

from stallwatch_alerts.channels import open_channel
from stallwatch_alerts.deadman import Deadman
from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.planning import Planner
from stallwatch_alerts.delivery.sender import Sender
from stallwatch_alerts.notice import Channel
from stallwatch_alerts.people import OperatorActions
from stallwatch_alerts.relay.dispatching import Dispatcher, OutcomeCounts, Receipt
from stallwatch_alerts.relay.incident_states import WATCHDOG, IncidentState, doubt, incident_states
from stallwatch_alerts.relay.server import RelayMetrics, RelayServer
from stallwatch_alerts.relay.webhook import read_notification
from stallwatch_exporter import steady
from stallwatch_exporter.serving.authentication import Access, problems
from stallwatch_rules.locale import duration_text

if TYPE_CHECKING:
    from stallwatch_alerts.delivery.planning import Draft, Escalated, Notified
    from stallwatch_alerts.relay.webhook import Alert
    from stallwatch_alerts.settings import RelaySettings
    from stallwatch_alerts.store import IncidentStore
    from stallwatch_exporter.incident import Incident
    from stallwatch_rules.pages.catalogue import Catalogue

_STUCK_SECONDS = 180.0  # seconds without reading the outbox after which a sender counts as stuck
_CLOSING = 5.0
_PRUNE_SECONDS = 86400.0
_INCIDENTS = 200  # maximum number of incidents to read for one run, newest first
_TRIES = 3
_YOUNG_SECONDS = 5.0
_LOOK_SECONDS = 0.25
_MOST_WAITING = 32  # maximum number of requests that wait for an incident; further requests do not wait


class NotificationIntake:
    """Receives notifications and stores the messages about them.

    Several threads can use one instance, and other relays can use the same database.
    """

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
        #: Steady time of the last notification that the watchdog alert fires, or None if it does not fire.
        self.watchdog_at: float | None = None

    def receive(self, body: bytes) -> Receipt:
        """Store the messages about a notification and return its receipt.

        All messages are on disk when this method returns. Raise `WebhookProblem` if the body is not a
        notification. Any other exception means that nothing was stored, and that the sender must retry.
        """
        notification = read_notification(body)
        found = self._joined(notification.alerts)
        tally = self._kept(found) if found else OutcomeCounts()
        watchdogs = [alert.firing for alert in notification.alerts if alert.name == WATCHDOG]
        # The watchdog alert of one Prometheus can resolve while the same alert of another Prometheus still
        # fires.
        if watchdogs:
            self.watchdog_at = self._clock() if any(watchdogs) else None
        doubts = tuple(dict.fromkeys(filter(None, map(doubt, notification.alerts))))
        return Receipt(tally, doubts, notification.problems)

    def _joined(self, alerts: Sequence[Alert]) -> list[IncidentState]:
        """Return the states of the incidents that the alerts are about.

        If an incident is not in the database yet, wait briefly, because the agent stores a new alert's
        incident at about the same time. If the agent and the relay do not share a database, the incident
        never arrives. The wait then costs a few seconds once for each alert.
        """
        found = incident_states(alerts, self._incidents)
        if not any(self._is_early(state) for state in found) or not self._waiting.acquire(blocking=False):
            return found
        try:
            while any(self._is_early(state) for state in found):
                self._pause(_LOOK_SECONDS)
                found = incident_states(alerts, self._incidents)
        finally:
            self._waiting.release()
        return found

    def _is_early(self, state: IncidentState) -> bool:
        return state.unjoined and 0 <= steady.wall(self._clock()) - state.alert.started < _YOUNG_SECONDS

    def _kept(self, found: Sequence[IncidentState]) -> OutcomeCounts:
        over = [state.subject.id for state in found if state.subject.is_settled]
        tally, now = OutcomeCounts(), self._clock()

        def make(notified: Notified, escalated: Escalated) -> list[Draft]:
            nonlocal tally
            drafts, tally = self._dispatcher.drafts(found, notified, escalated, steady.wall(now))
            return drafts

        for left in reversed(range(_TRIES)):
            try:
                self._outbox.put(make, now, over)
                break
            except IntegrityError:  # another relay notified the chats at the same time: repeat the plan
                if not left:
                    raise
        return tally

    def _incidents(self, run: str) -> list[Incident]:
        return self._store.list(run=run, limit=_INCIDENTS)


class Relay:
    """An alert relay that runs in its own threads until it is closed."""

    def __init__(
        self,
        settings: RelaySettings,
        store: IncidentStore,
        catalogue: Catalogue,
        *,
        report: Callable[[str], None] = lambda _: None,
        connect: Callable[[str], Channel] = open_channel,
        clock: Callable[[], float] = steady.now,
    ) -> None:
        """Start the relay. Raise `OSError` if its address is not available."""
        self._settings = settings
        self._clock = clock
        self._outbox = Outbox(store.engine)
        self._pruned_at = -_PRUNE_SECONDS
        self._pruning: threading.Thread | None = None
        alerts = settings.alerts
        planner = Planner(alerts, lambda: OperatorActions(store.engine))
        dispatcher = Dispatcher(alerts, planner, catalogue)
        self._intake = NotificationIntake(store, self._outbox, dispatcher, clock)
        metrics = RelayMetrics()
        metrics.follow(self._outbox.waiting, self._watchdog_at)
        self._senders = [
            Sender(
                url,
                self._outbox,
                connect,
                language=alerts.language,
                report=report,
                count=metrics.delivery,
                delivered=lambda chat, keys: self._outbox.note(chat, keys, steady.wall(clock())),
                acknowledged=planner.is_acknowledged,
                settled=self._outbox.notified_meanwhile,
                clock=clock,
            )
            for url in alerts.all_urls
        ]
        for problem in problems(settings.server):
            report(problem)
        # Start the server last, so that the senders exist when the first request arrives.
        try:
            self.server = RelayServer(
                (settings.host, settings.port),
                receive=self._receive,
                healthy=self.unhealthy,
                messages=self._messages,
                metrics=metrics,
                access=Access(settings.server, names=[settings.host], tokens=[settings.token], report=report),
                report=report,
            )
        except OSError:
            for sender in self._senders:
                sender.close(0.0)
            raise
        self._deadman = (
            Deadman(alerts.deadman_url, self.blind, seconds=alerts.deadman_seconds, report=report)
            if alerts.deadman_url
            else None
        )

    def unhealthy(self) -> str:
        """Return the reason why the relay cannot send messages, or "" if sending works."""
        try:
            self._outbox.waiting()
        except Exception as error:
            return f"the incident database cannot be read ({type(error).__name__})"
        now = self._clock()
        for sender in self._senders:
            if not sender.alive or now - sender.looked_at > _STUCK_SECONDS:
                return f"messages to {sender.name} are no longer sent"
        return ""

    def blind(self) -> str:
        """Return the reason why the relay cannot send messages or receives no alerts, or "" otherwise."""
        watchdog_at = self._intake.watchdog_at
        if watchdog_at is None:
            return self.unhealthy() or "the alert StallwatchWatchdog is not firing"
        silent = self._clock() - watchdog_at
        if silent > self._settings.watchdog_seconds:
            limit = duration_text(self._settings.watchdog_seconds)
            return f"the relay has not received the alert StallwatchWatchdog for more than {limit}"
        return self.unhealthy()

    def close(self) -> None:
        """Stop the server and finish the current work. Stored messages are sent after the next start."""
        self.server.close()
        for sender in self._senders:
            sender.close(_CLOSING)
        if self._pruning is not None:
            self._pruning.join(_CLOSING)
        if self._deadman is not None:
            self._deadman.close(None)

    def _prune(self) -> None:
        """Delete old rows of the relay's database once a day.

        The agents cannot do this for the relay, because agents on other hosts can use other databases.
        """
        now = self._clock()
        if now - self._pruned_at >= _PRUNE_SECONDS:
            self._pruned_at = now

            def prune() -> None:
                # If the database is down, the next attempt a day later is sufficient.
                with contextlib.suppress(Exception):
                    self._outbox.prune(now, self._settings.alerts.keep_days)

            # Pruning runs in a separate thread, after the notification is stored, because pruning can lock
            # the database for a long time.
            self._pruning = threading.Thread(target=prune, name="stallwatch-prune", daemon=True)
            self._pruning.start()

    def _receive(self, body: bytes) -> Receipt:
        receipt = self._intake.receive(body)
        if receipt.tally.new:
            for sender in self._senders:
                sender.wake()
        self._prune()
        return receipt

    def _watchdog_at(self) -> float | None:
        at = self._intake.watchdog_at
        return None if at is None else steady.wall(at)

    def _messages(self, run: str) -> list[Any]:
        return list(self._outbox.deliveries(run or None))
