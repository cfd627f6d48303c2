"""How much each chat takes before it shuts the door, by the scheme of its URL.

Sources: DingTalk 20 a minute for each robot, then nothing for ten minutes (open.dingtalk.com, "custom
robot access"); WeCom 20 a minute for each group robot (developer.work.weixin.qq.com, path 91770); Feishu
and Lark 100 a minute and 5 a second (open.feishu.cn, "custom bot guide"); Slack one a second
(docs.slack.dev, "Rate limits"); Telegram one a second for each chat and 20 a minute for each group
(core.telegram.org/bots/faq); Teams four a second (learn.microsoft.com, "Create an Incoming Webhook");
Discord five in two seconds and 30 a minute for each webhook (as its X-RateLimit headers say); ntfy one in
five seconds after the first 60 (docs.ntfy.sh, "Limitations").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_WINDOW = 60.0
_MARGIN = 0.5  # seconds: a message may be late on its way, and its successor not


@dataclass(frozen=True)
class Limit:
    """At most `count` messages within `seconds`."""

    count: int
    seconds: float


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
    "mailto": (Limit(30, 60.0),),  # ours: no mail server publishes one, and nobody reads more
    "mailtos": (Limit(30, 60.0),),
}
# Chats with webhooks that may be given as plain https:// URLs, which Apprise recognises.
_HOSTS = {
    "oapi.dingtalk.com": "dingtalk",
    "qyapi.weixin.qq.com": "wecombot",
    "open.feishu.cn": "feishu",
    "open.larksuite.com": "lark",
    "hooks.slack.com": "slack",
    "discord.com": "discord",
}


def limits_of(url: str) -> tuple[Limit, ...]:
    """The limits of the chat behind an Apprise URL; none for generic webhooks, which are somebody's own."""
    scheme, _, rest = url.strip().partition("://")
    host = rest.partition("/")[0].lower()
    return _LIMITS.get(_HOSTS.get(host, scheme.lower()), ())


def has_room(limits: Sequence[Limit], sent: Sequence[float], now: float) -> bool:
    """Whether one more message may leave `now`, after those that left at the steady times `sent`."""
    return all(sum(now - at < limit.seconds + _MARGIN for at in sent) < limit.count for limit in limits)
