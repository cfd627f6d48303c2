"""Convert chat addresses that Apprise 2.2.0 does not recognize to Apprise URLs.

Users copy these addresses from their chats. Addresses of Slack, Discord, Teams, WeCom and Lark need no
conversion.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

from stallwatch_rules.text.lazy import lazy

_FEISHU = lazy(
    r"https://open\.(?P<host>feishu\.cn|larksuite\.com|larkoffice\.com)/open-apis/bot/v2/hook/"
    r"(?P<token>[\w-]+)/?(?:\?(?P<query>.*))?",
    re.IGNORECASE,
)
_DINGTALK = lazy(r"https://oapi\.dingtalk\.com/robot/send\?(?P<query>.+)", re.IGNORECASE)


def apprise_url(url: str) -> str:
    """Return the URL in the form that Apprise reads; return it unchanged if Apprise recognizes it."""
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


def no_channel(url: str, log_lines: Sequence[str]) -> tuple[str, str]:
    """Return the reason why Apprise cannot send to the URL, and the reason's code for ``errors.remedy``."""
    scheme, found, _ = url.strip().partition("://")
    if not found:
        return "not a URL: it has no scheme such as slack://", "url"
    if scheme.lower() in ("http", "https"):
        return "no chat is known by this web address", "web"
    if scheme.lower() not in (known := _schemes()):
        near = difflib.get_close_matches(scheme.lower(), known, n=1)
        return f"there is no channel {scheme!r}" + (f"; did you mean {near[0]!r}?" if near else ""), "url"
    # Apprise also logs that it could not load the URL. These lines contain pieces of the URL.
    log_lines = [
        line for line in dict.fromkeys(log_lines) if not line.startswith(("Could not load", "Unparseable"))
    ]
    return "; ".join(log_lines) or "not a URL that Apprise understands", "url"


def _schemes() -> list[str]:
    from apprise.manager_plugins import NotificationManager

    manager: Any = NotificationManager  # NotificationManager has no types
    return sorted(manager().schemas())
