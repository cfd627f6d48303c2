"""One message for many: the worst one whole, the others by their titles, and counts of all of them.

A chat that takes 20 messages a minute, or was down for an hour, hears of a burst at once, not for hours.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import msgspec

from stallwatch_alerts.channels.notice import Notice
from stallwatch_alerts.messages import Message
from stallwatch_alerts.messages.compose import TITLE_LIMIT, listed
from stallwatch_alerts.messages.layout import shortened
from stallwatch_alerts.messages.links import TEXT_LIMIT
from stallwatch_alerts.neutral import shorten
from stallwatch_exporter.incident import RANKS
from stallwatch_rules.locale import say

LATE_SECONDS = 30.0  #: a message that is older says so
_TITLES = 10
_IDS = 200


class Group(msgspec.Struct, frozen=True):
    """Several notices in bounded room: what a message tells of them."""

    worst: Notice
    count: int
    titles: list[str]  #: of the others, the worst first; the first few
    severities: dict[str, int]  #: how many of the open ones, by severity; "resolved" for the others
    ids: list[str]  #: for programs; the first few hundred


def group_of(notice: Notice) -> Group:
    """A group of one."""
    facts = notice.facts
    severity = "resolved" if _is_over(notice) else str(facts.get("severity") or "info")
    return Group(notice, 1, [], {severity: 1}, [str(facts.get("id") or "")])


def merged(groups: Sequence[Group]) -> Group:
    """One group for all of them; in which order they are put together changes only which titles are shown."""
    by_harm = sorted(groups, key=lambda group: _harm(group.worst))
    titles = [group.worst.message.title for group in by_harm[1:]]
    for group in by_harm:
        if len(titles) >= _TITLES:
            break
        titles += group.titles
    severities: Counter[str] = Counter()
    for group in groups:
        severities.update(group.severities)
    ids = [name for group in groups for name in group.ids]
    return Group(
        by_harm[0].worst,
        sum(group.count for group in groups),
        titles[:_TITLES],
        dict(severities),
        ids[:_IDS],
    )


def written(
    group: Group, language: str, *, late: float = 0.0, expired: int = 0, now: float | None = None
) -> Notice:
    """The group as one message. `late` is its age in seconds; `expired` counts messages that never came.

    `now` is when it leaves, in Unix seconds; by default at once.
    """
    notice = group.worst
    title, blocks, facts = notice.message.title, [], dict(notice.facts)
    if group.count > 1:
        others = group.count - 1
        title = say("alerts.and-others", language, title=title, count=others)
        lines = [say("alerts.also", language), *(f"- {one}" for one in group.titles)]
        if others > len(group.titles):
            lines.append(say("alerts.further", language, count=others - len(group.titles)))
        tally = [
            say(f"alerts.tally-{name}", language, count=group.severities[name])
            for name in ("critical", "warning", "info", "resolved")
            if group.severities.get(name)
        ]
        blocks += [say("alerts.in-all", language, tally=listed(tally, language)), "\n".join(lines)]
        facts |= {"count": group.count, "incidents": ",".join(group.ids)}
    if late >= LATE_SECONDS:
        blocks.insert(0, say("alerts.late", language, duration=late, when=_when(now, late)))
    if expired:
        blocks.insert(0, say("alerts.expired", language, count=expired))
    text = "\n\n".join([*blocks, notice.message.text])
    message = Message(shorten(title, TITLE_LIMIT), shortened(text, TEXT_LIMIT))
    return replace(notice, message=message, facts=facts)


def _when(now: float | None, late: float) -> str:
    """The time of a message of this age, in this host's zone, which it names."""
    at = (time.time() if now is None else now) - late
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def expiry_notice(expired: int, language: str) -> Notice:
    """Nothing but that messages were given up."""
    facts: dict[str, str | int | None] = {
        "id": "stallwatch/expired",
        "run": "stallwatch",
        "kind": "expired",
        "rule": "",
        "severity": "warning",
        "status": "open",
        "episode": 1,
        "rank": None,
        "step": None,
        "host": "",
        "count": expired,
    }
    said = say("alerts.expired", language, count=expired)
    return Notice(Message(shorten(said, TITLE_LIMIT), said), "warning", facts)


def _is_over(notice: Notice) -> bool:
    """Whether it is good news, or none: a crash is resolved, too."""
    return notice.facts.get("status") == "resolved" and notice.facts.get("outcome") != "crashed"


def _harm(notice: Notice) -> tuple[bool, int]:
    return _is_over(notice), -RANKS.get(str(notice.facts.get("severity")), -1)
