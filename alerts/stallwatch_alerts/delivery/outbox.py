"""Store outgoing messages in a database and record the notifications that each chat received.

After a message is stored, its delivery does not depend on the process that stored it. Several processes can
send from the same outbox, because each process claims messages for the duration of one attempt. If the
process does not release a claim, the claim expires. The claim becomes void immediately if the process is
known to have ended.

All time arguments are steady times (``stallwatch_exporter.steady``). The database contains wall-clock times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, func, insert, or_, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from stallwatch_alerts.delivery import pacing
from stallwatch_alerts.delivery.claims import IN_ORDER, LOOKED_AT, Row, chosen, holder_is_gone, new_claim
from stallwatch_alerts.delivery.grouping import Group, compact, stored_group
from stallwatch_alerts.delivery.pacing import LONGEST_PAUSE, LONGEST_WINDOW, Limit, SteadyTimes
from stallwatch_alerts.notice import key_of_planned
from stallwatch_alerts.storage.engine import is_unwritable, migrate, writing
from stallwatch_alerts.storage.retention import prune
from stallwatch_alerts.storage.tables import MESSAGES, NOTIFIED
from stallwatch_exporter import steady

if TYPE_CHECKING:
    from stallwatch_alerts.delivery.planning import Draft, Escalated, Notified


class Claimed(NamedTuple):
    """A message that a process claimed for one delivery attempt."""

    id: int
    group: Group
    keys: tuple[str, ...]
    deferred: bool  #: True if the message was planned for a later time


@dataclass(frozen=True)
class Batch:
    """Messages that a process claimed for one delivery attempt, oldest first."""

    claim: str
    messages: tuple[Claimed, ...]
    attempts: int  #: number of failed attempts to send the first message
    created_at: float  #: steady time when the oldest message was stored
    expired: int = 0  #: number of discarded messages that have not been reported to the chat
    escalates: str = ""  #: the incident's ID if the message is an escalation, otherwise empty

    @property
    def ids(self) -> list[int]:
        """The IDs of all messages in the batch."""
        return [message.id for message in self.messages]

    @property
    def groups(self) -> list[Group]:
        """The groups of all messages in the batch."""
        return [message.group for message in self.messages]

    @property
    def keys(self) -> list[str]:
        """The keys of all messages in the batch."""
        return [key for message in self.messages for key in message.keys]


class _Refusal(NamedTuple):
    """The result of a failed attempt to send a message."""

    attempts: int  #: number of failed attempts so far
    again_at: float  #: steady time of the next attempt


@dataclass(frozen=True)
class Delivery:
    """The state of a message, for the delivery log."""

    name: str
    run: str
    title: str
    state: str
    attempts: int
    created_at: float
    sent_at: float | None
    reason: str
    channel: str = ""  #: the chat's fingerprint

    #: earliest time to send: the end of quiet hours or of the wait before an escalation
    not_before: float = 0.0
    escalation: bool = False


CLAIM_SECONDS = 60.0
#: assumed maximum difference in seconds between two hosts' clocks; a claim that expired longer ago is void
CLOCKS_APART = 300.0
_TITLES = 300
_TRIED_LATELY = 10.0


class Outbox:
    """Stores and claims the messages in one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._moments = SteadyTimes()
        # Results that could not be stored, by message ID: refusals, and the final values of finished
        # messages.
        self._refusals: dict[int, _Refusal] = {}
        self._finished: dict[int, dict[str, Any]] = {}
        # Steady times of requests that could not be stored, by chat.
        self._unrecorded: dict[str, list[float]] = {}
        migrate(engine)

    def put(
        self, make: Callable[[Notified, Escalated], Sequence[Draft]], now: float, over: Iterable[str] = ()
    ) -> list[Draft]:
        """In a single transaction, store the messages that `make` returns and record their notifications.

        Also withdraw the escalations of the incidents in `over`. Raise ``IntegrityError`` if another process
        notifies a chat of one of the incidents at the same time. The caller must then call ``put``
        again.
        """
        at = self._moments.store(now)
        with writing(self._engine) as connection:
            drafts = list(make(partial(_notified, connection), partial(_escalated, connection)))
            news = [
                {"channel": draft.channel, "key": key, "at": at} for draft in drafts for key in draft.keys
            ]
            if news:
                connection.execute(insert(NOTIFIED), news)
            if drafts:
                connection.execute(insert(MESSAGES), [_row(draft, at) for draft in drafts])
            for incident in over:
                withdraw_escalations(connection, MESSAGES.c.about == incident, "over")
            for channel in {draft.channel for draft in drafts}:
                compact(connection, channel, at)
        return drafts

    def claim(self, channel: str, now: float, limits: Sequence[Limit] = ()) -> Batch | None:
        """Claim and return the next due messages of the chat, or ``None`` if no message is due.

        If only a few messages are due, they are claimed one at a time. Many messages are claimed together
        and sent as one message. Nothing is claimed during a pause that the chat requested, or if the chat
        has received as many messages as its `limits` allow.
        """
        with self._engine.connect() as connection:  # usually no message is due, and a read needs no lock
            if not self._anything(connection, channel):
                return None
        with writing(self._engine) as connection:
            if not self._may_send(connection, channel, limits, now):
                return None
            rows = self._waiting(connection, channel, now)
            due = self._chosen(connection, channel, rows, {}, now)
            expired = pacing.expired(connection, channel)
            if not due and not (expired and not rows):
                return None
            pacing.note_send(connection, channel, now, self._moments)
            return self._claimed(connection, due, expired, now)

    def claim_or_read(self, channel: str, now: float, limits: Sequence[Limit] = ()) -> Batch | None:
        """Claim messages as `claim` does. If the database is not writable, only read the messages.

        Messages that were only read are returned without a claim. Another process can then send the same
        messages, but sending them twice is better than waiting until the disk has free space.
        """
        try:
            self._store_finished()
            return self.claim(channel, now, limits)
        except DBAPIError as error:
            if not is_unwritable(error):
                raise
        with self._engine.connect() as connection:
            if not self._may_send(connection, channel, limits, now):
                return None
            rows = [row for row in self._waiting(connection, channel, now) if row.id not in self._finished]
            due = self._chosen(connection, channel, rows, self._refusals, now)
        if not due:
            return None
        recent = [at for at in self._unrecorded.get(channel, ()) if now - at <= 2 * LONGEST_WINDOW]
        self._unrecorded[channel] = [*recent, now]
        batch, refusal = self._batch("", due, 0, now), self._refusals.get(due[0].id)
        return batch if refusal is None else replace(batch, attempts=refusal.attempts)

    @contextlib.contextmanager
    def _noted_here(self, batch: Batch, again_at: float = 0.0, **finished: Any) -> Iterator[None]:
        """If the ``with`` block cannot write to the database, keep the result of the batch in memory.

        The result is a refusal with the time of the next attempt, or the values to store for `finished`
        messages.
        """
        try:
            yield
        except DBAPIError as error:
            if not is_unwritable(error):
                raise
            if finished:
                self._finished |= dict.fromkeys(batch.ids, finished)
            else:
                self._refusals |= dict.fromkeys(batch.ids, _Refusal(batch.attempts + 1, again_at))

    def _store_finished(self) -> None:
        """Store the results of the messages that were finished while the database was not writable."""
        if finished := dict(self._finished):
            with writing(self._engine) as connection:
                for number, values in finished.items():
                    connection.execute(
                        update(MESSAGES).where(MESSAGES.c.id == number).values(_released(values))
                    )
            for number in finished:
                self._finished.pop(number, None)

    def take_turn(self, channel: str, now: float, limits: Sequence[Limit]) -> bool:
        """Return whether the chat's limits and pauses allow a request. If they do, count the request."""
        with writing(self._engine) as connection:
            if not self._may_send(connection, channel, limits, now):
                return False
            pacing.note_send(connection, channel, now, self._moments)
            return True

    def sent(self, batch: Batch, channel: str, now: float) -> None:
        """Record that the chat accepted the batch."""
        values: dict[str, Any] = {"state": "sent", "sent_at": steady.wall(now), "reason": ""}
        with self._noted_here(batch, **values), writing(self._engine) as connection:
            self._finish(connection, batch, **values)
            self._try_others(connection, channel, now)
            pacing.note_expired(connection, channel, batch.expired)

    def refused(
        self, batch: Batch, channel: str, reason: str, now: float, again_at: float, *, pause: bool = False
    ) -> None:
        """Record that the chat refused the batch, and that the next attempt is at `again_at`.

        If `pause` is true, send no other message to the chat before that time.
        """
        wait, at = again_at - now, self._moments.store(now)
        with self._noted_here(batch, again_at), writing(self._engine) as connection:
            self._finish(connection, batch, next_at=at + wait, tried_at=at, reason=reason[:1000])
            if pause or not batch.messages:
                pacing.pause(connection, channel, wait, now, self._moments)

    def give_up(self, batch: Batch, channel: str, reason: str) -> int:
        """Discard the messages in the batch and return their number. The next message reports this number."""
        count = sum(group.count for group in batch.groups)
        values: dict[str, Any] = {"state": "given-up", "reason": reason[:1000]}
        with self._noted_here(batch, **values), writing(self._engine) as connection:
            self._finish(connection, batch, **values)
            pacing.count_expired(connection, channel, count)
        return count

    def withdraw(self, batch: Batch, reason: str) -> None:
        """Withdraw the batch because its messages are no longer needed."""
        values: dict[str, Any] = {"state": "withdrawn", "reason": reason}
        with self._noted_here(batch, **values), writing(self._engine) as connection:
            self._finish(connection, batch, **values)

    def drop(self, channel: str, reason: str, now: float) -> int:
        """Withdraw this chat's waiting messages that no process is sending. Return their number."""
        unclaimed = MESSAGES.c.claimed_until <= steady.wall(now)
        with writing(self._engine) as connection:
            gone = (
                update(MESSAGES)
                .where(_waits_for(channel), unclaimed)
                .values(state="withdrawn", reason=reason[:1000])
            )
            return connection.execute(gone).rowcount

    def waiting(self, channels: Iterable[str] | None = None, before: float | None = None) -> int:
        """Return the number of waiting messages.

        `channels` restricts the count to the messages for these chats. `before` restricts the count to
        messages whose delivery is not deferred beyond that time.
        """
        count = select(func.count()).select_from(MESSAGES).where(MESSAGES.c.state == "waiting")
        if channels is not None:
            count = count.where(MESSAGES.c.channel.in_(list(channels)))
        if before is not None:
            count = count.where(MESSAGES.c.not_before <= steady.wall(before))
        with self._engine.connect() as connection:
            return int(connection.scalar(count) or 0)

    def incidents_waiting(self, channel: str | None = None, now: float | None = None) -> set[str]:
        """Return the IDs of the incidents that have undelivered messages.

        If a chat and a time are given, consider only messages to this chat that are no longer deferred at
        that time.
        """
        query = select(MESSAGES.c.about).where(MESSAGES.c.state == "waiting", MESSAGES.c.about != "")
        if channel is not None and now is not None:
            query = query.where(
                MESSAGES.c.channel == channel,
                MESSAGES.c.not_before <= steady.wall(now),
                MESSAGES.c.id.not_in(list(self._finished)),
            )
        with self._engine.connect() as connection:
            return set(connection.scalars(query))

    def notified(self, channel: str, keys: Iterable[str]) -> set[str]:
        """Return the subset of `keys` for which the chat was notified or a message is stored."""
        with self._engine.connect() as connection:
            return _notified(connection, channel, keys)

    def has_all(self, channel: str, keys: Iterable[str]) -> bool:
        """Return whether, for each of the `keys`, the chat has been notified or a message is stored."""
        wanted = set(keys)
        return self.notified(channel, wanted) == wanted

    def notified_meanwhile(self, channel: str, keys: Iterable[str]) -> bool:
        """Return whether all `keys` are planned keys and another process has already notified the chat."""
        wanted = [key_of_planned(key) for key in keys]
        return all(wanted) and self.has_all(channel, wanted)

    def note(self, channel: str, keys: Iterable[str], at: float) -> None:
        """Record that the chat was notified for these `keys` at wall-clock time `at`.

        For a planned key, the key of the message itself is recorded.
        """
        wanted = {key_of_planned(key) or key for key in keys}
        for key in sorted(wanted - self.notified(channel, wanted)):
            known = {"channel": channel, "key": key}
            with contextlib.suppress(IntegrityError), writing(self._engine) as connection:
                connection.execute(insert(NOTIFIED).values(**known, at=at))

    def release(self, incident: str) -> None:
        """Withdraw this incident's escalations and delete this agent's record of having planned them."""
        with writing(self._engine) as connection:
            mine = and_(MESSAGES.c.about == incident, MESSAGES.c.escalation == 1)
            waiting = and_(mine, MESSAGES.c.state == "waiting")
            planned = select(MESSAGES.c.channel, MESSAGES.c["keys"]).where(waiting)
            for channel, keys in connection.execute(planned).all():
                known = and_(NOTIFIED.c.channel == channel, NOTIFIED.c.key.in_(keys))
                connection.execute(delete(NOTIFIED).where(known))
            withdraw_escalations(connection, mine, "another host merges")

    def deliveries(
        self, run: str | None = None, limit: int = 100, *, state: str | None = None
    ) -> list[Delivery]:
        """Return the states of the stored messages, newest first.

        The result can be restricted to one run or state.
        """
        query = select(MESSAGES).order_by(MESSAGES.c.id.desc()).limit(limit)
        if run is not None:
            query = query.where(MESSAGES.c.run == run)
        if state is not None:
            query = query.where(MESSAGES.c.state == state)
        with self._engine.connect() as connection:
            return [_delivery(row) for row in connection.execute(query)]

    def prune(self, now: float, keep_days: float) -> int:
        """Delete old rows of this database with ``retention.prune``. Return the number of deleted rows."""
        return prune(self._engine, steady.wall(now), keep_days)

    def _anything(self, connection: Connection, channel: str) -> bool:
        mine = select(MESSAGES.c.id).where(_waits_for(channel)).limit(1)
        return connection.execute(mine).first() is not None or pacing.expired(connection, channel) > 0

    def _waiting(self, connection: Connection, channel: str, now: float) -> Sequence[Any]:
        """Return the messages that can be sent immediately.

        Quiet hours end at a wall-clock time. The wait before an escalation is a duration on the steady
        clock.
        """
        later = MESSAGES.c.not_before > steady.wall(now)
        mine = and_(_waits_for(channel), or_(~later, MESSAGES.c.escalation == 1))
        query = select(MESSAGES).where(mine).order_by(later, MESSAGES.c.id).limit(LOOKED_AT)
        # The rows stay locked until they are claimed. Other processes wait, and then see the claims.
        rows = connection.execute(query.with_for_update()).all()
        return [
            row
            for row in rows
            if not row.escalation
            or now - self._moments.of(row.created_at, now) >= row.not_before - row.created_at
        ]

    def _may_send(self, connection: Connection, channel: str, limits: Sequence[Limit], now: float) -> bool:
        unrecorded = self._unrecorded.get(channel, ())
        return pacing.may_send(connection, channel, limits, now, self._moments, unrecorded)

    def _chosen(
        self,
        connection: Connection,
        channel: str,
        rows: Sequence[Any],
        refusals: Mapping[int, _Refusal],
        now: float,
    ) -> Sequence[Any]:
        """Return the messages to send. `refusals` contains results that could not be stored."""
        gone = {claim for claim in {row.claim for row in rows} if claim and holder_is_gone(claim)}
        refused = any(row.attempts >= IN_ORDER for row in rows)
        taken_at = _last_sent(connection, channel) if refused else 0.0
        looked = [self._looked(row, gone, taken_at, now) for row in rows]
        for at, row in enumerate(rows):
            # The row can still contain the claim of the earlier attempt, whose result could not be stored.
            if (known := refusals.get(row.id)) is not None:
                is_due = known.again_at <= now
                looked[at] = replace(looked[at], attempts=known.attempts, is_due=is_due, is_claimed=False)
        return rows[chosen(looked, now)]

    def _looked(self, row: Any, gone: Container[str], taken_at: float, now: float) -> Row:
        tried_at = self._moments.of(row.tried_at, now)
        is_held = bool(row.claim) and row.claim not in gone
        claimed = self._moments.of(row.claimed_until - CLAIM_SECONDS, now)
        is_new = now - self._moments.first_seen(row.claim, now) < CLAIM_SECONDS
        return Row(
            row.attempts,
            now - tried_at >= min(row.next_at - row.tried_at, LONGEST_PAUSE),
            is_held and is_new and now - claimed < CLAIM_SECONDS + CLOCKS_APART,
            row.about or row.run,
            bool(row.escalation),
            created_at=self._moments.of(row.created_at, now),
            tried_at=tried_at,
            is_disliked=taken_at > row.created_at,
        )

    def _claimed(self, connection: Connection, rows: Sequence[Any], expired: int, now: float) -> Batch:
        ids = [row.id for row in rows]
        claim = new_claim()
        self._moments.first_seen(claim, now)
        connection.execute(
            update(MESSAGES)
            .where(MESSAGES.c.id.in_(ids))
            .values(claimed_until=steady.wall(now) + CLAIM_SECONDS, claim=claim)
        )
        for number in ids:
            self._refusals.pop(number, None)  # the result of this attempt replaces the refusal
        return self._batch(claim, rows, expired, now)

    def _batch(self, claim: str, rows: Sequence[Any], expired: int, now: float) -> Batch:
        return Batch(
            claim,
            tuple(
                Claimed(row.id, stored_group(row), tuple(row.keys or ()), bool(row.not_before))
                for row in rows
            ),
            rows[0].attempts if rows else 0,
            min((self._moments.of(row.created_at, now) for row in rows), default=now),
            expired,
            rows[0].about if rows and rows[0].escalation else "",
        )

    def _try_others(self, connection: Connection, channel: str, now: float) -> None:
        """Make refused messages of this chat due again, because the chat accepted a message."""
        refused = and_(MESSAGES.c.next_at > 0, MESSAGES.c.tried_at < steady.wall(now) - _TRIED_LATELY)
        connection.execute(update(MESSAGES).where(_waits_for(channel), refused).values(next_at=0.0))

    def _finish(self, connection: Connection, batch: Batch, **values: Any) -> None:
        """Release the claim on the batch and store `values` in the batch's messages.

        If the claim expired and another process claimed the messages, change nothing.
        """
        mine = and_(MESSAGES.c.id.in_(batch.ids), MESSAGES.c.claim == batch.claim)
        connection.execute(update(MESSAGES).where(mine).values(_released(values)))


def _released(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values to store after an attempt. These values also remove the claim."""
    return {"claimed_until": 0.0, "claim": "", "attempts": MESSAGES.c.attempts + 1, **values}


def _last_sent(connection: Connection, channel: str) -> float:
    """Return the time when the chat accepted its last message, or 0 if the chat has accepted no message."""
    mine = and_(MESSAGES.c.channel == channel, MESSAGES.c.state == "sent")
    return float(connection.scalar(select(func.max(MESSAGES.c.sent_at)).where(mine)) or 0.0)


def _waits_for(channel: str) -> ColumnElement[bool]:
    return and_(MESSAGES.c.channel == channel, MESSAGES.c.state == "waiting")


def withdraw_escalations(connection: Connection, whose: ColumnElement[bool], reason: str) -> list[str]:
    """Withdraw the waiting escalations that the SQL condition `whose` selects. Return their incident IDs."""
    waiting = and_(whose, MESSAGES.c.state == "waiting", MESSAGES.c.escalation == 1)
    found = sorted(set(connection.scalars(select(MESSAGES.c.about).where(waiting))))
    connection.execute(update(MESSAGES).where(waiting).values(state="withdrawn", reason=reason))
    return found


def _delivery(row: Any) -> Delivery:
    given = {column.name: getattr(row, column.name) for column in fields(Delivery) if column.name != "title"}
    return Delivery(**{**given, "title": row.notice["message"]["title"], "escalation": bool(row.escalation)})


def _row(draft: Draft, at: float) -> dict[str, Any]:
    return {
        "channel": draft.channel,
        "name": draft.name[:_TITLES],
        "run": draft.run[:200],
        "created_at": at,
        "notice": msgspec.to_builtins(draft.notice),
        "not_before": draft.not_before,
        "about": draft.about,
        "escalation": int(draft.escalation),
        "keys": list(draft.keys),
    }


_IN_ONE_QUERY = 500  # SQLite accepts 32,766 parameters in a query; before 3.32, only 999


def _notified(connection: Connection, channel: str, keys: Iterable[str]) -> set[str]:
    wanted, found = list(dict.fromkeys(keys)), set()
    for begin in range(0, len(wanted), _IN_ONE_QUERY):
        some = wanted[begin : begin + _IN_ONE_QUERY]
        mine = select(NOTIFIED.c.key).where(NOTIFIED.c.channel == channel, NOTIFIED.c.key.in_(some))
        found |= set(connection.scalars(mine))
    return found


def _escalated(connection: Connection, incident: str) -> set[str]:
    mine = and_(MESSAGES.c.about == incident, MESSAGES.c.state == "sent", MESSAGES.c.escalation == 1)
    return set(connection.scalars(select(MESSAGES.c.channel).where(mine)))
