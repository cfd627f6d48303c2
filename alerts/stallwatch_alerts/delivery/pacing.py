"""When a chat may be sent something at all: its limits, the pauses it asked for, and what it was not told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from stallwatch_alerts.delivery.limits import LONGEST_WINDOW, Limit, has_room
from stallwatch_alerts.delivery.waits import LONGEST_PAUSE, SKEW
from stallwatch_alerts.storage.tables import CHANNELS, SENDS


def may_send(connection: Connection, channel: str, limits: Sequence[Limit], now: float) -> bool:
    """Whether the chat takes one more message now, from whichever process."""
    row = _row(connection, channel)
    if row is not None and _is_paused(row.paused_until, row.paused_at, now):
        return False
    if not limits:
        return True
    sent = select(SENDS.c.at).where(SENDS.c.channel == channel, SENDS.c.at > now - 2 * LONGEST_WINDOW)
    return has_room(limits, connection.scalars(sent).all(), now)


def note_send(connection: Connection, channel: str, now: float) -> None:
    """Something leaves for the chat, whether it arrives or not."""
    connection.execute(delete(SENDS).where(SENDS.c.channel == channel, SENDS.c.at < now - 2 * LONGEST_WINDOW))
    connection.execute(insert(SENDS).values(channel=channel, at=now))


def pause(connection: Connection, channel: str, until: float, now: float) -> None:
    """Send the chat nothing until then."""
    _set(connection, channel, paused_until=until, paused_at=now)


def expired(connection: Connection, channel: str) -> int:
    """How many messages were given up without the chat knowing."""
    row = _row(connection, channel)
    return 0 if row is None else int(row.expired)


def count_expired(connection: Connection, channel: str, count: int) -> None:
    """So many more were given up."""
    _set(connection, channel, expired=expired(connection, channel) + count)


def tell_expired(connection: Connection, channel: str, count: int) -> None:
    """The chat was told of so many."""
    if count:
        _set(connection, channel, expired=max(0, expired(connection, channel) - count))


def _is_paused(until: float, since: float, now: float) -> bool:
    """A pause from the future is one from before a clock was set back."""
    return now < until <= now + LONGEST_PAUSE + SKEW and since <= now + SKEW


def _row(connection: Connection, channel: str) -> Any:
    return connection.execute(select(CHANNELS).where(CHANNELS.c.channel == channel)).one_or_none()


def _set(connection: Connection, channel: str, **values: Any) -> None:
    mine = update(CHANNELS).where(CHANNELS.c.channel == channel).values(**values)
    if connection.execute(mine).rowcount == 0:
        given = {"paused_until": 0.0, "paused_at": 0.0, "expired": 0, **values}
        connection.execute(insert(CHANNELS).values(channel=channel, **given))
