"""Join several messages into one message, which shows the worst notice in full.

The message also lists the titles of the other notices and states the total number of notices. Some chats
accept only 20 messages a minute, and a chat can be down for an hour. After a burst of notices, such a chat
receives one message instead of many messages over several hours. Joining also limits the size of the
database, because the oldest messages are joined if thousands of messages wait for one chat.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, and_, delete, func, select, update

from stallwatch_alerts.messages.compose import TITLE_LIMIT, Message, listed
from stallwatch_alerts.messages.layout import shortened
from stallwatch_alerts.messages.links import TEXT_LIMIT
from stallwatch_alerts.neutral import clipped
from stallwatch_alerts.notice import Notice, facts_of
from stallwatch_alerts.storage.tables import MESSAGES
from stallwatch_exporter.incident import RANKS
from stallwatch_rules.decoding import convert
from stallwatch_rules.locale import say

LATE_SECONDS = 30.0  #: a message older than this many seconds shows its age
_TITLES = 10
_IDS = 200


class Group(msgspec.Struct, frozen=True):
    """The size-limited content of one message about several notices."""

    worst: Notice
    count: int
    titles: list[str]  #: the first titles of the other notices, worst first
    severities: dict[str, int]  #: number of open notices by severity; "resolved" counts closed incidents
    ids: list[str]  #: the first few hundred incident IDs, for programs that receive the message
    statuses: list[str] = []  #: the status for each of `ids`; empty if version 0.1 stored the group


def group_of(notice: Notice) -> Group:
    """Return a group that contains only this notice."""
    facts = notice.facts
    severity = "resolved" if _is_over(notice) else str(facts.get("severity") or "info")
    about, status = str(facts.get("id") or ""), str(facts.get("status") or "")
    return Group(notice, 1, [], {severity: 1}, [about], [status])


def merged(groups: Sequence[Group]) -> Group:
    """Join several groups into one group. The order of the groups affects only which titles are shown."""
    by_harm = sorted(groups, key=lambda group: _harm(group.worst))
    titles = [group.worst.message.title for group in by_harm[1:]]
    for group in by_harm:
        if len(titles) >= _TITLES:
            break
        titles += group.titles
    severities: Counter[str] = Counter()
    for group in groups:
        severities.update(group.severities)
    about = [
        pair for group in groups for pair in itertools.zip_longest(group.ids, group.statuses, fillvalue="")
    ][:_IDS]
    return Group(
        by_harm[0].worst,
        sum(group.count for group in groups),
        titles[:_TITLES],
        dict(severities),
        [name for name, _ in about],
        [status for _, status in about],
    )


def grouped_message(
    group: Group, language: str, *, late: float = 0.0, expired: int = 0, now: float | None = None
) -> Notice:
    """Return the group as one notice.

    `late` is the age of the messages in seconds, and `expired` is the number of discarded messages. `now` is
    the time of sending as a Unix timestamp in seconds. The default is the current time.
    """
    notice = group.worst
    title, blocks, facts = notice.message.title, [], dict(notice.facts)
    if group.count > 1:
        title, others = title_with_count(title, group.titles, group.count - 1, language)
        tally = [
            say(f"alerts.tally-{name}", language, count=group.severities[name])
            for name in ("critical", "warning", "info", "resolved")
            if group.severities.get(name)
        ]
        blocks += [say("alerts.in-all", language, tally=listed(tally, language)), others]
        about = {"incidents": ",".join(group.ids), "statuses": ",".join(group.statuses)}
        facts |= {"count": group.count, **about}
    if late >= LATE_SECONDS:
        blocks.insert(0, say("alerts.late", language, duration=late, when=_when(now, late)))
    if expired:
        blocks.insert(0, say("alerts.expired", language, count=expired))
    text = "\n\n".join([*blocks, notice.message.text])
    message = Message(title, shortened(text, TEXT_LIMIT))
    return replace(notice, message=message, facts=facts)


def title_with_count(title: str, titles: Sequence[str], count: int, language: str) -> tuple[str, str]:
    """Return two strings: the title of a message about `count` further notices, and a list of `titles`."""
    lines = [say("alerts.also", language), *(f"- {other}" for other in titles)]
    if count > len(titles):
        lines.append(say("alerts.further", language, count=count - len(titles)))
    whole = say("alerts.and-others", language, title=title, count=count)
    return clipped(whole, TITLE_LIMIT), "\n".join(lines)


def _when(now: float | None, late: float) -> str:
    """Return the creation time of a message that is `late` seconds old, in this host's time zone."""
    at = (time.time() if now is None else now) - late
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def expiry_notice(expired: int, language: str) -> Notice:
    """Return a notice that reports only the number of discarded messages."""
    facts = facts_of(id="stallwatch/expired", kind="expired", severity="warning", count=expired)
    text = say("alerts.expired", language, count=expired)
    return Notice(Message(clipped(text, TITLE_LIMIT), text), "warning", facts)


def _is_over(notice: Notice) -> bool:
    """Return whether the notice reports the end of a problem. The end of a crashed run does not count."""
    return notice.facts.get("status") == "resolved" and notice.facts.get("outcome") != "crashed"


def _harm(notice: Notice) -> tuple[bool, int]:
    return _is_over(notice), -RANKS.get(str(notice.facts.get("severity")), -1)


MOST_WAITING = 2000
_LEFT = 1000
_KEYS = 20_000


def compact(connection: Connection, channel: str, now: float) -> int:
    """Join the oldest messages that no process is sending, and return how many messages were joined."""
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
    """Return the group that is stored in a row of the message table."""
    if row.group is not None:
        return convert(row.group, Group)
    return group_of(convert(row.notice, Notice))
