"""If Apprise 2.2.0 does not recognize a chat address, convert the address to an Apprise URL.

Users copy these addresses from their chats. Addresses of Slack, Discord, Teams, WeCom, and Lark need no
conversion.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cache
from typing import Any
from urllib.parse import parse_qs

from stallwatch_alerts.channels.errors import ChannelError
from stallwatch_rules.text.lazy import lazy

_FEISHU = lazy(
    r"https://open\.(?P<host>feishu\.cn|larksuite\.com|larkoffice\.com)/open-apis/bot/v2/hook/"
    r"(?P<token>[\w-]+)/?(?:\?(?P<query>.*))?",
    re.IGNORECASE,
)
_DINGTALK = lazy(r"https://oapi\.dingtalk\.com/robot/send\?(?P<query>.+)", re.IGNORECASE)


def apprise_url(url: str) -> str:
    """Return the Apprise URL for a chat address, or the address itself if Apprise recognizes it."""
    url = url.strip()
    found = _FEISHU.fullmatch(url)
    if found is not None:
        scheme = "lark" if found["host"].lower() == "larksuite.com" else "feishu"
        return f"{scheme}://{found['token']}" + (f"?{found['query']}" if found["query"] else "")
    found = _DINGTALK.fullmatch(url)
    if found is not None:
        query = parse_qs(found["query"])
        token, secret = (query.get(name, [""])[0] for name in ("access_token", "secret"))
        return f"dingtalk://{token}" + (f"?secret={secret}" if secret else "")
    return url


def no_channel(url: str, log_lines: Sequence[str]) -> ChannelError:
    """Return an error that explains why Apprise cannot send to the URL."""
    scheme, found, _ = url.strip().partition("://")
    if not found:
        return ChannelError("not a URL: it has no scheme such as slack://", code="url")
    if scheme.lower() in ("http", "https"):
        return ChannelError("no supported chat uses this web address", code="web")
    if scheme.lower() not in (known := apprise_schemes()):
        near = difflib.get_close_matches(scheme.lower(), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return ChannelError(f"unknown channel {scheme!r}{hint}", code="url")
    # Omit the lines in which Apprise reports that it could not load the URL, because these lines contain
    # parts of the URL.
    reasons = [line for line in log_lines if not line.startswith(("Could not load", "Unparseable"))]
    reason = "; ".join(dict.fromkeys(reasons)) or "Apprise cannot read this URL"
    return ChannelError(reason, code="url")


@cache
def apprise_schemes() -> list[str]:
    """Return the URL schemes of the installed version of Apprise."""
    from apprise.manager_plugins import NotificationManager

    manager: Any = NotificationManager  # NotificationManager has no type annotations
    return sorted(manager().schemas())
