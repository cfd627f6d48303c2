"""Decide when to send the next message to a chat.

The decision depends on rate limits, on pauses that the chat requested, and on waits after refused messages.
The argument `now` is always a time on the steady clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from stallwatch_alerts.storage.tables import CHANNELS, SENDS
from stallwatch_exporter import steady

LONGEST_WINDOW = 60.0
# A margin in seconds: the network can delay one message so that it arrives together with the next message.
_MARGIN = 0.5


@dataclass(frozen=True)
class Limit:
    """A rate limit: at most `count` messages within `seconds`."""

    count: int
    seconds: float


# Documented limits, in messages. DingTalk: 20 a minute for each robot, then a block of ten minutes
# (open.dingtalk.com, "custom robot access"). WeCom: 20 a minute for each group robot
# (developer.work.weixin.qq.com, path 91770). Feishu and Lark: 100 a minute and 5 a second (open.feishu.cn,
# "custom bot guide"). Slack: 1 a second (docs.slack.dev, "Rate limits"). Telegram: 1 a second for each chat
# and 20 a minute for each group (core.telegram.org/bots/faq). Teams: 4 a second (learn.microsoft.com, "Create
# an Incoming Webhook"). Discord: 5 in two seconds and 30 a minute for each webhook (X-RateLimit headers).
# ntfy: 1 in five seconds after the first 60 (docs.ntfy.sh, "Limitations").
_MINUTE_20 = (Limit(20, 60.0),)
_LIMITS: dict[str, tuple[Limit, ...]] = {
    "dingtalk": _MINUTE_20,
    "wecombot": _MINUTE_20,
    "feishu": (Limit(100, 60.0), Limit(5, 1.0)),
    "lark": (Limit(100, 60.0), Limit(5, 1.0)),
    "slack": (Limit(1, 1.0),),
    "tgram": (Limit(1, 1.0), Limit(20, 60.0)),
    "msteams": (Limit(4, 1.0),),
    "workflows": (Limit(4, 1.0),),
    "workflow": (Limit(4, 1.0),),
    "discord": (Limit(5, 2.0), Limit(30, 60.0)),
    "ntfy": (Limit(12, 60.0),),
    "ntfys": (Limit(12, 60.0),),
    "mailto": (Limit(30, 60.0),),  # no documented limit, and users cannot read more messages in a minute
    "mailtos": (Limit(30, 60.0),),
}
# Chats whose webhooks can be configured as plain https:// URLs, which Apprise recognizes.
_HOSTS = {
    "oapi.dingtalk.com": "dingtalk",
    "qyapi.weixin.qq.com": "wecombot",
    "open.feishu.cn": "feishu",
    "open.larksuite.com": "lark",
    "hooks.slack.com": "slack",
    "discord.com": "discord",
}


def limits_of(url: str) -> tuple[Limit, ...]:
    """Return the rate limits of the chat that an Apprise URL identifies. Generic webhooks have no limits."""
    scheme, _, rest = url.strip().partition("://")
    host = rest.partition("/")[0].lower()
    return _LIMITS.get(_HOSTS.get(host, scheme.lower()), ())


def has_room(limits: Sequence[Limit], sent: Sequence[float], now: float) -> bool:
    """Return whether `limits` allow another message. `sent` contains the steady times of earlier messages."""
    return all(sum(now - at < limit.seconds + _MARGIN for at in sent) < limit.count for limit in limits)


GIVE_UP_AFTER = 86400.0  #: age in seconds at which a message is discarded

# Minimum number of attempts before a message is discarded. Without this minimum, a message that waited for
# a day because no sender was running would be discarded after its first attempt.
_TRIES_AT_LEAST = 30
LONGEST_PAUSE = 3600.0  #: maximum pause in seconds, even if the chat requested a longer pause
_FIRST, _LONGEST = 1.0, 60.0


def wait_after(failures: int, chance: float, requested: float | None = None) -> float:
    """Return the wait in seconds before the next attempt. The wait is at least `requested`.

    The wait doubles after each refusal, up to a minute. The number `chance` between 0 and 1 spreads the
    attempts of messages that were refused together. `chance` never makes the wait shorter than the time that
    the chat `requested`.
    """
    full = min(_LONGEST, _FIRST * 2.0 ** min(failures - 1, 30))
    waited = full * (0.5 + 0.5 * chance)
    return waited if requested is None else min(LONGEST_PAUSE, max(waited, requested + waited - 0.5 * full))


def is_expired(created_at: float, attempts: int, now: float) -> bool:
    """Return whether to discard a message that the chat has refused `attempts` times."""
    return attempts >= _TRIES_AT_LEAST and now - created_at >= GIVE_UP_AFTER


_REMEMBERED = 20_000


class SteadyTimes:
    """Converts wall-clock times in the database to times on this process's steady clock.

    Stored times are mapped to the steady time at which this process stored or first read them, or to an
    earlier steady time. The steady time is never in the future. Therefore, a message is delayed by at most
    twice its intended wait, even if the clock was set back, or if the clock of the storing host is ahead of
    this host's clock.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, float] = OrderedDict()

    def store(self, now: float) -> float:
        """Return the wall-clock time to store for the steady time `now`."""
        at = steady.wall(now)
        self.first_seen(at, now)
        return at

    def of(self, at: float, now: float) -> float:
        """Return the steady time for the stored wall-clock time `at`."""
        return self.first_seen(at, min(now, at - steady.moved()))

    def first_seen(self, value: Hashable, now: float) -> float:
        """Return the steady time when this process first saw the value. For a new value, this is `now`."""
        kept = self._known.setdefault(value, now)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return kept


def may_send(
    connection: Connection,
    channel: str,
    limits: Sequence[Limit],
    now: float,
    moments: SteadyTimes,
    unrecorded: Sequence[float] = (),
) -> bool:
    """Return whether the chat accepts one more message. The messages of all processes count.

    `unrecorded` contains the steady times of further messages, which could not be recorded.
    """
    row = _row(connection, channel)
    if row is not None:
        pause = min(row.paused_until - row.paused_at, LONGEST_PAUSE)
        if now - moments.of(row.paused_at, now) < pause:
            return False
    sent = [*_sends(connection, channel, now, moments).values(), *unrecorded] if limits else []
    return has_room(limits, sent, now)


def note_send(connection: Connection, channel: str, now: float, moments: SteadyTimes) -> None:
    """Record that a request was sent to the chat, even if the request did not arrive."""
    sends = _sends(connection, channel, now, moments)
    old = [number for number, at in sends.items() if now - at > 2 * LONGEST_WINDOW]
    connection.execute(delete(SENDS).where(SENDS.c.id.in_(old)))
    connection.execute(insert(SENDS).values(channel=channel, at=moments.store(now)))


def pause(connection: Connection, channel: str, seconds: float, now: float, moments: SteadyTimes) -> None:
    """Send no message to the chat for this many seconds."""
    since = moments.store(now)
    _set(connection, channel, paused_until=since + seconds, paused_at=since)


def expired(connection: Connection, channel: str) -> int:
    """Return the number of discarded messages that have not been reported to the chat."""
    row = _row(connection, channel)
    return 0 if row is None else int(row.expired)


def count_expired(connection: Connection, channel: str, count: int) -> None:
    """Add `count` to the number of discarded messages that have not been reported to the chat."""
    _set(connection, channel, expired=expired(connection, channel) + count)


def note_expired(connection: Connection, channel: str, count: int) -> None:
    """Record that `count` discarded messages were reported to the chat."""
    if count:
        _set(connection, channel, expired=max(0, expired(connection, channel) - count))


def _sends(connection: Connection, channel: str, now: float, moments: SteadyTimes) -> dict[int, float]:
    """Return the steady times of the recent requests to the chat, by row ID."""
    rows = connection.execute(select(SENDS.c.id, SENDS.c.at).where(SENDS.c.channel == channel))
    return {row.id: moments.of(row.at, now) for row in rows}


def _row(connection: Connection, channel: str) -> Any:
    return connection.execute(select(CHANNELS).where(CHANNELS.c.channel == channel)).one_or_none()


def _set(connection: Connection, channel: str, **values: Any) -> None:
    mine = update(CHANNELS).where(CHANNELS.c.channel == channel).values(**values)
    if connection.execute(mine).rowcount == 0:
        connection.execute(insert(CHANNELS).values(channel=channel, **values))
