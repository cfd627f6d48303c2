"""Messages that were accepted for a chat and must arrive: kept in a database until they did.

Whoever puts one in may forget it. Several processes may empty the same outbox: messages are claimed for as
long as one try takes, and a claim that its holder did not live to give back runs out; at once where it is
seen that he has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, and_, func, insert, select, update

from stallwatch_alerts.delivery import pacing
from stallwatch_alerts.delivery.claims import holder_is_gone, new_claim
from stallwatch_alerts.delivery.compaction import compact, stored_group
from stallwatch_alerts.delivery.ledger import told
from stallwatch_alerts.delivery.limits import Limit
from stallwatch_alerts.delivery.records import Batch, Delivery, Draft
from stallwatch_alerts.delivery.selection import LOOKED_AT, Row, chosen
from stallwatch_alerts.storage.engine import writing
from stallwatch_alerts.storage.migrate import migrate
from stallwatch_alerts.storage.retention import prune
from stallwatch_alerts.storage.tables import MESSAGES, TOLD

CLAIM_SECONDS = 60.0
_TITLES = 300
_TRIED_LATELY = 10.0

Make = Callable[[Callable[[str, Iterable[str]], set[str]]], Sequence[Draft]]


class Outbox:
    """The messages of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        migrate(engine)

    def put(self, make: Make, now: float, over: Iterable[str] = ()) -> list[Draft]:
        """Keep the messages that `make` writes, and note what they tell, all or nothing.

        Because of incidents that are `over` nobody is called any more.

        `make` is given a function that says which keys a chat was told already. An ``IntegrityError`` says
        that another relay told one of them in between: the caller asks again.
        """
        with writing(self._engine) as connection:
            drafts = list(make(lambda channel, keys: told(connection, channel, keys)))
            told_now = [
                {"channel": draft.channel, "key": key, "at": now} for draft in drafts for key in draft.keys
            ]
            if told_now:
                connection.execute(insert(TOLD), told_now)
            if drafts:
                connection.execute(insert(MESSAGES), [_row(draft, now) for draft in drafts])
            for incident in over:
                _withdraw_escalations(connection, incident, "over")
            for channel in {draft.channel for draft in drafts}:
                compact(connection, channel, now)
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
            if not pacing.may_send(connection, channel, limits, now):
                return None
            rows = self._waiting(connection, channel, now)
            gone = {claim for claim in {row.claim for row in rows} if claim and holder_is_gone(claim)}
            first = chosen([_looked(row, gone) for row in rows], now)
            expired = pacing.expired(connection, channel)
            if not rows[first] and not (expired and not rows):
                return None
            pacing.note_send(connection, channel, now)
            return self._claimed(connection, rows[first], expired, now)

    def take_turn(self, channel: str, now: float, limits: Sequence[Limit]) -> bool:
        """Whether the chat takes one more request now, which then counts as sent."""
        with writing(self._engine) as connection:
            if not pacing.may_send(connection, channel, limits, now):
                return False
            pacing.note_send(connection, channel, now)
            return True

    def sent(self, batch: Batch, channel: str, now: float) -> None:
        """It arrived."""
        with writing(self._engine) as connection:
            self._finish(connection, batch, state="sent", sent_at=now, reason="")
            self._try_others(connection, channel, now)
            pacing.tell_expired(connection, channel, batch.expired)

    def refused(
        self, batch: Batch, channel: str, reason: str, now: float, again_at: float, *, pause: bool = False
    ) -> None:
        """It did not arrive, and is to be tried at `again_at`; with `pause`, so is all else of this chat."""
        with writing(self._engine) as connection:
            self._finish(connection, batch, next_at=again_at, tried_at=now, reason=reason[:1000])
            if pause or not batch.ids:
                pacing.pause(connection, channel, again_at, now)

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
            MESSAGES.c.channel == channel, MESSAGES.c.state == "waiting", MESSAGES.c.claimed_until <= now
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
            count = count.where(MESSAGES.c.not_before <= before)
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
        return prune(self._engine, now, keep_days)

    def _anything(self, connection: Connection, channel: str) -> bool:
        mine = select(MESSAGES.c.id).where(MESSAGES.c.channel == channel, MESSAGES.c.state == "waiting")
        return (
            connection.execute(mine.limit(1)).first() is not None or pacing.expired(connection, channel) > 0
        )

    def _waiting(self, connection: Connection, channel: str, now: float) -> Sequence[Any]:
        mine = and_(
            MESSAGES.c.channel == channel, MESSAGES.c.state == "waiting", MESSAGES.c.not_before <= now
        )
        query = select(MESSAGES).where(mine).order_by(MESSAGES.c.id).limit(LOOKED_AT)
        # The rows stay locked until they are claimed; who comes in between waits, and finds them claimed.
        return connection.execute(query.with_for_update()).all()

    def _claimed(self, connection: Connection, rows: Sequence[Any], expired: int, now: float) -> Batch:
        ids = [row.id for row in rows]
        claim = new_claim()
        connection.execute(
            update(MESSAGES)
            .where(MESSAGES.c.id.in_(ids))
            .values(claimed_until=now + CLAIM_SECONDS, claim=claim)
        )
        return Batch(
            claim,
            tuple(ids),
            tuple(stored_group(row) for row in rows),
            tuple(tuple(row.keys or ()) for row in rows),
            rows[0].attempts if rows else 0,
            min((row.created_at for row in rows), default=now),
            expired,
            rows[0].about if rows and rows[0].escalation else "",
            frozenset(row.id for row in rows if row.not_before),
        )

    def _try_others(self, connection: Connection, channel: str, now: float) -> None:
        """The chat takes messages: those that it refused a while ago need not wait any longer."""
        waited = and_(
            MESSAGES.c.channel == channel,
            MESSAGES.c.state == "waiting",
            MESSAGES.c.next_at > now,
            MESSAGES.c.tried_at < now - _TRIED_LATELY,
        )
        connection.execute(update(MESSAGES).where(waited).values(next_at=now))

    def _finish(self, connection: Connection, batch: Batch, **values: Any) -> None:
        """Give the claim back. Who took over a claim that ran out is not disturbed."""
        mine = and_(MESSAGES.c.id.in_(batch.ids), MESSAGES.c.claim == batch.claim)
        given = {"claimed_until": 0.0, "claim": "", "attempts": MESSAGES.c.attempts + 1, **values}
        connection.execute(update(MESSAGES).where(mine).values(given))


def _withdraw_escalations(connection: Connection, incident: str, reason: str) -> None:
    mine = and_(MESSAGES.c.about == incident, MESSAGES.c.state == "waiting", MESSAGES.c.escalation == 1)
    connection.execute(update(MESSAGES).where(mine).values(state="withdrawn", reason=reason))


def _looked(row: Any, gone: Container[str]) -> Row:
    about = row.about or row.run
    claimed_until = 0.0 if row.claim in gone else row.claimed_until
    return Row(row.attempts, row.next_at, row.tried_at, claimed_until, about, bool(row.escalation))


def _row(draft: Draft, now: float) -> dict[str, Any]:
    return {
        "channel": draft.channel,
        "name": draft.name[:_TITLES],
        "run": draft.run[:200],
        "created_at": now,
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
