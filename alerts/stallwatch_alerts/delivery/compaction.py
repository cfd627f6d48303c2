"""Bounded room on disk: beyond some thousand messages that wait for one chat, the oldest become one."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, and_, delete, func, select, update

from stallwatch_alerts.channels.notice import Notice
from stallwatch_alerts.delivery.grouping import Group, group_of, merged
from stallwatch_alerts.storage.tables import MESSAGES

MOST_WAITING = 2000
_LEFT = 1000
_KEYS = 20_000


def compact(connection: Connection, channel: str, now: float) -> int:
    """Join the oldest messages that nobody is trying; how many that were."""
    free = and_(
        MESSAGES.c.channel == channel,
        MESSAGES.c.state == "waiting",
        MESSAGES.c.escalation == 0,
        MESSAGES.c.not_before <= now,
        MESSAGES.c.claim == "",
    )
    count = connection.scalar(select(func.count()).select_from(MESSAGES).where(free)) or 0
    if count <= MOST_WAITING:
        return 0
    rows = connection.execute(
        select(MESSAGES).where(free).order_by(MESSAGES.c.id).limit(count - _LEFT).with_for_update()
    ).all()
    group = merged([stored_group(row) for row in rows])
    keys = [key for row in rows for key in row.keys or ()][-_KEYS:]
    first, last = rows[0].id, rows[-1].id
    connection.execute(
        update(MESSAGES)
        .where(MESSAGES.c.id == first)
        .values(
            notice=msgspec.to_builtins(group.worst),
            group=msgspec.to_builtins(group),
            keys=keys,
        )
    )
    connection.execute(delete(MESSAGES).where(free, MESSAGES.c.id > first, MESSAGES.c.id <= last))
    return len(rows)


def stored_group(row: Any) -> Group:
    """What a row of the table tells."""
    if row.group is not None:
        return msgspec.convert(row.group, Group)
    return group_of(msgspec.convert(row.notice, Notice))
