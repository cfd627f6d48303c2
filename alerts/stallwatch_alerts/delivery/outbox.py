"""Messages that were accepted for a chat and must arrive: kept in a database until they did.

Whoever puts one in may forget it. Several processes may empty the same outbox: messages are claimed for as
long as one try takes, and a claim that its holder did not live to give back runs out; at once where it is
seen that he has ended.

All times handed in are steady (``stallwatch_exporter.steady``); the database holds wall-clock times.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, and_, func, insert, or_, select, update

from stallwatch_alerts.delivery import pacing
from stallwatch_alerts.delivery.claims import holder_is_gone, new_claim
from stallwatch_alerts.delivery.compaction import compact, stored_group
from stallwatch_alerts.delivery.ledger import told
from stallwatch_alerts.delivery.limits import Limit
from stallwatch_alerts.delivery.moments import Moments
from stallwatch_alerts.delivery.records import Batch, Delivery, Draft
from stallwatch_alerts.delivery.selection import LOOKED_AT, Row, chosen
from stallwatch_alerts.delivery.waits import LONGEST_PAUSE
from stallwatch_alerts.storage.engine import writing
from stallwatch_alerts.storage.migrate import migrate
from stallwatch_alerts.storage.retention import prune
from stallwatch_alerts.storage.tables import MESSAGES, TOLD
from stallwatch_exporter import steady

CLAIM_SECONDS = 60.0
CLOCKS_APART = 300.0  #: by which the clocks of two hosts may differ; a claim that ran out before that is over
_TITLES = 300
_TRIED_LATELY = 10.0

Make = Callable[[Callable[[str, Iterable[str]], set[str]]], Sequence[Draft]]


class Outbox:
    """The messages of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._moments = Moments()
        migrate(engine)

    def put(self, make: Make, now: float, over: Iterable[str] = ()) -> list[Draft]:
        """Keep the messages that `make` writes, and note what they tell, all or nothing.

        Because of incidents that are `over` nobody is called any more.

        `make` is given a function that says which keys a chat was told already. An ``IntegrityError`` says
        that another relay told one of them in between: the caller asks again.
        """
        at = self._moments.store(now)
        with writing(self._engine) as connection:
            drafts = list(make(lambda channel, keys: told(connection, channel, keys)))
            told_now = [
                {"channel": draft.channel, "key": key, "at": at} for draft in drafts for key in draft.keys
            ]
            if told_now:
                connection.execute(insert(TOLD), told_now)
            if drafts:
                connection.execute(insert(MESSAGES), [_row(draft, at) for draft in drafts])
            for incident in over:
                _withdraw_escalations(connection, incident, "over")
            for channel in {draft.channel for draft in drafts}:
                compact(connection, channel, at)
        return drafts

    def claim(self, channel: str, now: float, limits: Sequence[Limit] = ()) -> Batch | None:
        """The chat's next messages that are due, claimed by the caller; ``None`` where there are none.

        A few are claimed one by one, many together, to be told as one. Nothing is claimed while the chat
        asked to be left alone, or has had what its `limits` allow.
        """
        with self._engine.connect() as connection:  # most looks find nothing, and need no lock
            if not self._anything(connection, channel):
                return None
        with writing(self._engine) as connection:
            if not pacing.may_send(connection, channel, limits, now, self._moments):
                return None
            rows = self._waiting(connection, channel, now)
            gone = {claim for claim in {row.claim for row in rows} if claim and holder_is_gone(claim)}
            first = chosen([self._looked(row, gone, now) for row in rows])
            expired = pacing.expired(connection, channel)
            if not rows[first] and not (expired and not rows):
                return None
            pacing.note_send(connection, channel, now, self._moments)
            return self._claimed(connection, rows[first], expired, now)

    def take_turn(self, channel: str, now: float, limits: Sequence[Limit]) -> bool:
        """Whether the chat takes one more request now, which then counts as sent."""
        with writing(self._engine) as connection:
            if not pacing.may_send(connection, channel, limits, now, self._moments):
                return False
            pacing.note_send(connection, channel, now, self._moments)
            return True

    def sent(self, batch: Batch, channel: str, now: float) -> None:
        """It arrived."""
        with writing(self._engine) as connection:
            self._finish(connection, batch, state="sent", sent_at=steady.wall(now), reason="")
            self._try_others(connection, channel, now)
            pacing.tell_expired(connection, channel, batch.expired)

    def refused(
        self, batch: Batch, channel: str, reason: str, now: float, again_at: float, *, pause: bool = False
    ) -> None:
        """It did not arrive, and is to be tried at `again_at`; with `pause`, so is all else of this chat."""
        wait, at = again_at - now, self._moments.store(now)
        with writing(self._engine) as connection:
            self._finish(connection, batch, next_at=at + wait, tried_at=at, reason=reason[:1000])
            if pause or not batch.ids:
                pacing.pause(connection, channel, wait, now, self._moments)

    def give_up(self, batch: Batch, channel: str, reason: str) -> int:
        """They will not be tried any more; the chat is told how many, when it answers again."""
        with writing(self._engine) as connection:
            self._finish(connection, batch, state="given-up", reason=reason[:1000])
            count = sum(group.count for group in batch.groups)
            pacing.count_expired(connection, channel, count)
        return count

    def withdraw(self, batch: Batch, reason: str) -> None:
        """They need not be told any more."""
        with writing(self._engine) as connection:
            self._finish(connection, batch, state="withdrawn", reason=reason)

    def drop(self, channel: str, reason: str, now: float) -> int:
        """Nobody is to be told what waits for this chat; how many that were. What is being sent is left."""
        waiting = and_(
            MESSAGES.c.channel == channel,
            MESSAGES.c.state == "waiting",
            MESSAGES.c.claimed_until <= steady.wall(now),
        )
        with writing(self._engine) as connection:
            gone = update(MESSAGES).where(waiting).values(state="withdrawn", reason=reason[:1000])
            return connection.execute(gone).rowcount

    def escalated(self, incident: str) -> set[str]:
        """The chats that were called because nobody had acknowledged it."""
        mine = and_(MESSAGES.c.about == incident, MESSAGES.c.state == "sent", MESSAGES.c.escalation == 1)
        with self._engine.connect() as connection:
            return set(connection.scalars(select(MESSAGES.c.channel).where(mine)))

    def waiting(self, channels: Iterable[str] | None = None, before: float | None = None) -> int:
        """How many messages have not arrived yet: of these chats, of those that may leave `before` then."""
        count = select(func.count()).select_from(MESSAGES).where(MESSAGES.c.state == "waiting")
        if channels is not None:
            count = count.where(MESSAGES.c.channel.in_(list(channels)))
        if before is not None:
            count = count.where(MESSAGES.c.not_before <= steady.wall(before))
        with self._engine.connect() as connection:
            return int(connection.scalar(count) or 0)

    def told(self, channel: str, keys: Iterable[str]) -> set[str]:
        """Those of the `keys` that the chat was told, or will be."""
        with self._engine.connect() as connection:
            return told(connection, channel, keys)

    def deliveries(
        self, run: str | None = None, limit: int = 100, *, state: str | None = None
    ) -> list[Delivery]:
        """What became of the newest messages, newest first; of one run or state only, where asked."""
        query = select(MESSAGES).order_by(MESSAGES.c.id.desc()).limit(limit)
        if run is not None:
            query = query.where(MESSAGES.c.run == run)
        if state is not None:
            query = query.where(MESSAGES.c.state == state)
        with self._engine.connect() as connection:
            return [
                Delivery(
                    row.name,
                    row.run,
                    row.notice["message"]["title"],
                    row.state,
                    row.attempts,
                    row.created_at,
                    row.sent_at,
                    row.reason,
                    row.channel,
                    row.not_before,
                    bool(row.escalation),
                )
                for row in connection.execute(query)
            ]

    def prune(self, now: float, keep_days: float) -> int:
        """As ``retention.prune``, in this database."""
        return prune(self._engine, steady.wall(now), keep_days)

    def _anything(self, connection: Connection, channel: str) -> bool:
        mine = select(MESSAGES.c.id).where(MESSAGES.c.channel == channel, MESSAGES.c.state == "waiting")
        return (
            connection.execute(mine.limit(1)).first() is not None or pacing.expired(connection, channel) > 0
        )

    def _waiting(self, connection: Connection, channel: str, now: float) -> Sequence[Any]:
        """The messages whose time has come. Quiet hours end by the wall clock; an escalation is a wait."""
        later = MESSAGES.c.not_before > steady.wall(now)
        mine = and_(
            MESSAGES.c.channel == channel,
            MESSAGES.c.state == "waiting",
            or_(~later, MESSAGES.c.escalation == 1),
        )
        query = select(MESSAGES).where(mine).order_by(later, MESSAGES.c.id).limit(LOOKED_AT)
        # The rows stay locked until they are claimed; who comes in between waits, and finds them claimed.
        rows = connection.execute(query.with_for_update()).all()
        return [
            row
            for row in rows
            if not row.escalation
            or now - self._moments.of(row.created_at, now) >= row.not_before - row.created_at
        ]

    def _looked(self, row: Any, gone: Container[str], now: float) -> Row:
        wait = min(row.next_at - row.tried_at, LONGEST_PAUSE)
        is_due = now - self._moments.of(row.tried_at, now) >= wait
        is_held = bool(row.claim) and row.claim not in gone
        claimed = self._moments.of(row.claimed_until - CLAIM_SECONDS, now)
        is_new = now - self._moments.first_seen(row.claim, now) < CLAIM_SECONDS
        is_claimed = is_held and is_new and now - claimed < CLAIM_SECONDS + CLOCKS_APART
        return Row(row.attempts, is_due, is_claimed, row.about or row.run, bool(row.escalation))

    def _claimed(self, connection: Connection, rows: Sequence[Any], expired: int, now: float) -> Batch:
        ids = [row.id for row in rows]
        claim = new_claim()
        self._moments.first_seen(claim, now)
        connection.execute(
            update(MESSAGES)
            .where(MESSAGES.c.id.in_(ids))
            .values(claimed_until=steady.wall(now) + CLAIM_SECONDS, claim=claim)
        )
        return Batch(
            claim,
            tuple(ids),
            tuple(stored_group(row) for row in rows),
            tuple(tuple(row.keys or ()) for row in rows),
            rows[0].attempts if rows else 0,
            min((self._moments.of(row.created_at, now) for row in rows), default=now),
            expired,
            rows[0].about if rows and rows[0].escalation else "",
            frozenset(row.id for row in rows if row.not_before),
        )

    def _try_others(self, connection: Connection, channel: str, now: float) -> None:
        """The chat takes messages: those that it refused a while ago need not wait any longer."""
        waited = and_(
            MESSAGES.c.channel == channel,
            MESSAGES.c.state == "waiting",
            MESSAGES.c.next_at > 0,
            MESSAGES.c.tried_at < steady.wall(now) - _TRIED_LATELY,
        )
        connection.execute(update(MESSAGES).where(waited).values(next_at=0.0))

    def _finish(self, connection: Connection, batch: Batch, **values: Any) -> None:
        """Give the claim back. Who took over a claim that ran out is not disturbed."""
        mine = and_(MESSAGES.c.id.in_(batch.ids), MESSAGES.c.claim == batch.claim)
        given = {"claimed_until": 0.0, "claim": "", "attempts": MESSAGES.c.attempts + 1, **values}
        connection.execute(update(MESSAGES).where(mine).values(given))


def _withdraw_escalations(connection: Connection, incident: str, reason: str) -> None:
    mine = and_(MESSAGES.c.about == incident, MESSAGES.c.state == "waiting", MESSAGES.c.escalation == 1)
    connection.execute(update(MESSAGES).where(mine).values(state="withdrawn", reason=reason))


def _row(draft: Draft, at: float) -> dict[str, Any]:
    return {
        "channel": draft.channel,
        "name": draft.name[:_TITLES],
        "run": draft.run[:200],
        "created_at": at,
        "notice": msgspec.to_builtins(draft.notice),
        "state": "waiting",
        "attempts": 0,
        "next_at": 0.0,
        "claimed_until": 0.0,
        "reason": "",
        "not_before": draft.not_before,
        "about": draft.about,
        "escalation": int(draft.escalation),
        "keys": list(draft.keys),
    }
