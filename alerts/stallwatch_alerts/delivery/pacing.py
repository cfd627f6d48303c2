"""When a chat may be sent something at all: its limits, the pauses it asked for, and what was left out.

`now` is steady time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from stallwatch_alerts.delivery.limits import LONGEST_WINDOW, Limit, has_room
from stallwatch_alerts.delivery.moments import Moments
from stallwatch_alerts.delivery.waits import LONGEST_PAUSE
from stallwatch_alerts.storage.tables import CHANNELS, SENDS


def may_send(
    connection: Connection, channel: str, limits: Sequence[Limit], now: float, moments: Moments
) -> bool:
    """Whether the chat takes one more message now, from whichever process."""
    row = _row(connection, channel)
    if row is not None:
        pause = min(row.paused_until - row.paused_at, LONGEST_PAUSE)
        if now - moments.of(row.paused_at, now) < pause:
            return False
    return not limits or has_room(limits, list(_sends(connection, channel, now, moments).values()), now)


def note_send(connection: Connection, channel: str, now: float, moments: Moments) -> None:
    """Something leaves for the chat, whether it arrives or not."""
    sends = _sends(connection, channel, now, moments)
    old = [number for number, at in sends.items() if now - at > 2 * LONGEST_WINDOW]
    connection.execute(delete(SENDS).where(SENDS.c.id.in_(old)))
    connection.execute(insert(SENDS).values(channel=channel, at=moments.store(now)))


def pause(connection: Connection, channel: str, seconds: float, now: float, moments: Moments) -> None:
    """Send the chat nothing for so long."""
    since = moments.store(now)
    _set(connection, channel, paused_until=since + seconds, paused_at=since)


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


def _sends(connection: Connection, channel: str, now: float, moments: Moments) -> dict[int, float]:
    """What left for the chat lately: by number, when it did, in steady time."""
    rows = connection.execute(select(SENDS.c.id, SENDS.c.at).where(SENDS.c.channel == channel))
    return {row.id: moments.of(row.at, now) for row in rows}


def _row(connection: Connection, channel: str) -> Any:
    return connection.execute(select(CHANNELS).where(CHANNELS.c.channel == channel)).one_or_none()


def _set(connection: Connection, channel: str, **values: Any) -> None:
    mine = update(CHANNELS).where(CHANNELS.c.channel == channel).values(**values)
    if connection.execute(mine).rowcount == 0:
        given = {"paused_until": 0.0, "paused_at": 0.0, "expired": 0, **values}
        connection.execute(insert(CHANNELS).values(channel=channel, **given))
