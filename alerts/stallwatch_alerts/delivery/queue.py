"""Accept incident updates immediately. Background threads store the messages and deliver them."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from stallwatch_alerts.channels import open_channel
from stallwatch_alerts.delivery.planning import Draft, Escalated, IncidentMessage, Notified, Planner
from stallwatch_alerts.notice import Channel, Notice
from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.worker import Worker
from stallwatch_exporter import steady

if TYPE_CHECKING:
    from stallwatch_alerts.delivery.outbox import Outbox
    from stallwatch_alerts.delivery.sender import Sender
    from stallwatch_alerts.people import OperatorActions

_CAPACITY = 5000  # maximum number of messages that have not been stored in a database, about 20 MB
_AT_ONCE = 200
_LOOK_SECONDS = 0.05
#: Errors that a lack of descriptors, memory, or threads causes.
_SHORTAGES = (OSError, MemoryError, ImportError, RuntimeError)
_MEMORY_DAYS = 1.0  # number of days that sent messages are kept in memory
_TAKEN_OVER_SECONDS = 10.0  # seconds that another agent has to record an escalation that it took over


class DeliveryQueue:
    """Accepts messages about incidents immediately.

    One thread stores the messages, and a separate thread for each chat delivers them. If the disk is not
    writable, or if there is no spool, messages are kept in memory. The queue also delivers the undelivered
    messages of earlier agents. The next agent, or ``stallwatch relay``, delivers the messages that remain in
    this queue's spool.

    `spool` opens the database that keeps messages until they arrive. `people` opens the database of silences
    and acknowledgements. A background thread calls both functions. `report` receives descriptions of unusable
    URLs and refused messages. `delivered` receives each chat's fingerprint and the delivered keys. `settled`
    returns whether a relay has already sent the chat a message that the spool holds for later.
    """

    def __init__(
        self,
        settings: AlertSettings,
        *,
        spool: Callable[[], Outbox] | None = None,
        people: Callable[[], OperatorActions] | None = None,
        report: Callable[[str], None] = lambda _: None,
        connect: Callable[[str], Channel] = open_channel,
        delivered: Callable[[str, Sequence[str]], None] = lambda _channel, _keys: None,
        settled: Callable[[str, Sequence[str]], bool] = lambda _channel, _keys: False,
        clock: Callable[[], float] = steady.now,
    ) -> None:
        self._settings = settings
        self._planner = Planner(settings, people)
        self._open_spool = spool
        self._report = report
        self._connect = connect
        self._delivered = delivered
        self._settled = settled
        self._clock = clock
        self._spool: Outbox | None = None
        self._memory: Outbox | None = None
        self._senders: list[Sender] = []
        self._troubled = self._closed = False
        self._incident_messages: deque[IncidentMessage] = deque()
        self._edits: deque[Notice] = deque(maxlen=_AT_ONCE)
        self._notes: deque[IncidentMessage | str] = deque(maxlen=_AT_ONCE)
        self._planned: set[str] = set()  # IDs of the incidents whose escalation this agent has planned
        self._in_hand: set[str] = set()  # IDs of the incidents whose messages are being stored
        self._lost = 0
        self._disk_first_until = math.inf
        self._worker: Worker[None] = Worker("stallwatch-spool", self._take, capacity=1, begin=self._open)

    def put(self, update: IncidentMessage) -> None:
        """Accept a message about an incident. This method never waits."""
        if len(self._incident_messages) >= _CAPACITY:
            self._lost += 1
            return
        self._incident_messages.append(update)
        self._worker.put(None)  # wakes the worker; one item is enough for all messages

    def amend(self, notice: Notice) -> None:
        """Update the message of an open incident in chats that support edits. This method never waits."""
        self._edits.append(notice)
        self._worker.put(None)

    def note(self, update: IncidentMessage) -> None:
        """Record that another agent sent this message, so that this agent does not resend it.

        This agent still sends the message about the incident's end and the escalations. This method never
        waits.
        """
        self._notes.append(update)
        self._worker.put(None)

    def release(self, incident: str) -> None:
        """Cancel this agent's escalation, because another agent has planned one. This method never waits."""
        self._notes.append(incident)
        self._worker.put(None)

    def escalates(self, incident: str) -> bool:
        """Return whether this agent has planned the incident's escalation.

        Return False if another agent that uses the same spool has planned it.
        """
        return incident in self._planned

    def has_sent(self, incident: str) -> bool:
        """Return whether all due messages about this incident have been delivered."""
        queued = {update.incident.id for update in list(self._incident_messages)}
        if incident in self._in_hand | queued:
            return False
        now = self._clock()
        with contextlib.suppress(Exception):
            return not any(
                incident in outbox.incidents_waiting(channel, now)
                for outbox in (self._spool, self._memory)
                if outbox is not None
                for channel in self._planner.channels
            )
        return False

    @property
    def sent(self) -> int:
        """The total number of messages delivered to all URLs."""
        return sum(sender.sent for sender in self._senders)

    @property
    def failed(self) -> int:
        """The number of messages that could not be delivered and are not retried."""
        left = self._waiting(self._memory) if self._closed else 0
        return self._lost + left + sum(sender.given_up for sender in self._senders)

    def kept(self) -> int:
        """Return the number of messages that wait on disk. Messages deferred to a later time do not count."""
        return self._waiting(self._spool)

    def close(self, timeout: float) -> bool:
        """Deliver the remaining messages within `timeout` seconds. Return whether all messages arrived.

        Messages that did not arrive stay on disk.
        """
        deadline = time.monotonic() + timeout
        self._disk_first_until = deadline - timeout / 2
        self._worker.put(None)  # triggers a retry of messages that could not be kept even in memory
        self._worker.close(timeout)
        self._lost += len(self._incident_messages)
        self._incident_messages.clear()
        while self.kept() + self._waiting(self._memory) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        self._closed = True
        for sender in self._senders:
            sender.close(max(0.2, deadline - time.monotonic()))
        return not self.failed and not self.kept()

    def _waiting(self, outbox: Outbox | None) -> int:
        with contextlib.suppress(Exception):
            if outbox is not None:
                return outbox.waiting(self._planner.channels, self._clock())
        return 0

    def _open(self) -> None:
        """Open the spool and start its senders. If this fails, the next message triggers another attempt."""
        if self._open_spool is not None:
            spool = self._open_spool()
            with contextlib.suppress(Exception):
                spool.prune(self._clock(), self._settings.keep_days)
            self._senders += self._senders_of(spool)
            self._spool = spool

    def _senders_of(self, outbox: Outbox) -> list[Sender]:
        from stallwatch_alerts.delivery.sender import Sender  # a slow import, because it needs SQLAlchemy

        return [
            Sender(
                url,
                outbox,
                self._connect,
                language=self._settings.language,
                report=self._report,
                delivered=self._delivered,
                acknowledged=self._planner.is_acknowledged,
                settled=self._settled,
                turn=partial(self._may_send, outbox),
                clock=self._clock,
            )
            for url in self._settings.all_urls
        ]

    def _may_send(self, outbox: Outbox, channel: str) -> bool:
        """Return whether messages from this outbox can be sent immediately.

        The outbox in memory waits while the outbox on disk has messages about the same incidents. It does not
        wait if the disk is unreadable or if the run is about to end, because the messages in memory would be
        lost.
        """
        disk, now = self._spool, self._clock()
        if outbox is not self._memory or disk is None or time.monotonic() >= self._disk_first_until:
            return True
        if any(sender.outbox is disk and sender.is_stuck(now) for sender in self._senders):
            return True
        mine = outbox.incidents_waiting(channel, now)
        with contextlib.suppress(Exception):
            return not mine or mine.isdisjoint(disk.incidents_waiting(channel, now))
        return True

    def _take(self, _item: None, give_up: threading.Event) -> None:
        while self._notes:
            self._note(self._notes.popleft())
        while self._incident_messages and not give_up.is_set():
            self._in_hand = {update.incident.id for update in list(self._incident_messages)[:_AT_ONCE]}
            some = [
                self._incident_messages.popleft() for _ in range(min(_AT_ONCE, len(self._incident_messages)))
            ]
            try:
                self._store(some)
            except _SHORTAGES:  # even if no memory is left, the next message or `close` causes a retry
                self._incident_messages.extendleft(reversed(some))
                break
            except Exception:  # one of the messages cannot be stored
                for update in some:
                    try:
                        self._store([update])
                    except Exception:
                        self._lost += 1
        self._in_hand = set()
        while self._edits:
            notice = self._edits.popleft()
            for sender in self._senders:
                sender.amend(notice)

    def _note(self, noted: IncidentMessage | str) -> None:
        """Record that another agent notified the chats, or cancel this agent's escalation of an incident."""
        with contextlib.suppress(*_SHORTAGES):
            if self._spool is None:
                self._open()
        outbox, now = self._spool or self._in_memory(), self._clock()
        with contextlib.suppress(Exception):
            if isinstance(noted, IncidentMessage):
                self._note_sent(outbox, noted, now)
            elif noted in self._planned:
                self._planned.discard(noted)
                outbox.release(noted)

    def _note_sent(self, outbox: Outbox, update: IncidentMessage, now: float) -> None:
        incident, at = update.incident, steady.wall(now)
        waited = at - incident.opened_at

        def escalations(notified: Notified, escalated: Escalated) -> Sequence[Draft]:
            """Plan the other agent's escalations for later, because the other agent might not send them."""
            if incident.status != "open":
                return []
            drafts = self._planner.drafts([update], notified, escalated, at)
            later = waited - _TAKEN_OVER_SECONDS
            return [
                replace(draft, not_before=draft.not_before - later) for draft in drafts if draft.escalation
            ]

        for draft in self._planner.drafts([update], lambda _channel, _keys: set(), lambda _: set(), at):
            if not draft.escalation or draft.not_before - waited <= at:  # the other agent has already sent it
                outbox.note(draft.channel, draft.keys, at)
        self._put(outbox, escalations, now, [incident.id] if incident.is_settled else [])

    def _put(
        self,
        outbox: Outbox,
        make: Callable[[Notified, Escalated], Sequence[Draft]],
        now: float,
        over: Sequence[str],
    ) -> None:
        drafts = outbox.put(make, now, over)
        self._planned |= {draft.about for draft in drafts if draft.escalation}
        self._planned -= {*over}
        if drafts:
            for sender in self._senders:
                sender.wake()

    def _store(self, updates: Sequence[IncidentMessage]) -> None:
        """Store the messages on disk, or in memory if the disk is not writable, but never in both places."""
        try:
            if self._spool is None:
                self._open()
            # An update must not overtake the first message of its incident while this message is in memory.
            before = set() if self._memory is None else self._memory.incidents_waiting()
            later = [update for update in updates if update.incident.id in before]
            others = [update for update in updates if update.incident.id not in before]
            if later:
                self._keep(self._in_memory(), later)
            if others:
                self._keep(self._spool or self._in_memory(), others)
            self._troubled = False
        except Exception as error:
            if not self._troubled:
                self._troubled = True
                with contextlib.suppress(Exception):
                    self._report(
                        f"messages cannot be stored on disk ({type(error).__name__}); "
                        "they are sent from memory"
                    )
            self._keep(self._in_memory(), updates)

    def _in_memory(self) -> Outbox:
        if self._memory is None:
            from stallwatch_alerts.delivery.outbox import Outbox
            from stallwatch_alerts.storage.engine import memory_engine

            memory = Outbox(memory_engine())
            self._senders += self._senders_of(memory)
            self._memory = memory
        return self._memory

    def _keep(self, outbox: Outbox, updates: Sequence[IncidentMessage]) -> None:
        now = self._clock()
        over = [update.incident.id for update in updates if update.incident.is_settled]
        other = self._memory if outbox is self._spool else self._spool

        def make(notified: Notified, escalated: Escalated) -> Sequence[Draft]:
            def notified_anywhere(channel: str, keys: Iterable[str]) -> set[str]:
                """Return the keys whose notification is recorded in the outbox on disk or in memory.

                Both outboxes can contain keys of the same incident, because the disk can fill up during the
                incident.
                """
                keys = list(keys)
                known = set(notified(channel, keys))
                if other is not None:
                    with contextlib.suppress(Exception):
                        known |= other.notified(channel, keys)
                return known

            return self._planner.drafts(updates, notified_anywhere, escalated, steady.wall(now))

        if outbox is self._memory:
            with contextlib.suppress(Exception):
                outbox.prune(now, _MEMORY_DAYS)
        self._put(outbox, make, now, over)
