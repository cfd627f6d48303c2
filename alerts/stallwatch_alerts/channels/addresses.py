"""Addresses as chats show them, for people to copy, as Apprise URLs where Apprise 2.2.0 does not know them.

Apprise reads those of Slack, Discord, Teams, WeCom and Lark itself.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs

_FEISHU = re.compile(
    r"https://open\.(?P<host>feishu\.cn|larksuite\.com|larkoffice\.com)/open-apis/bot/v2/hook/"
    r"(?P<token>[\w-]+)/?(?:\?(?P<query>.*))?",
    re.IGNORECASE,
)
_DINGTALK = re.compile(r"https://oapi\.dingtalk\.com/robot/send\?(?P<query>.+)", re.IGNORECASE)


def apprise_url(url: str) -> str:
    """The URL as Apprise reads it; unchanged where there is nothing to do."""
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
