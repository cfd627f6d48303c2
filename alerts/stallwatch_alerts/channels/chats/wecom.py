"""Send notices to group robots of WeCom (WeChat Work).

The documentation at developer.work.weixin.qq.com says:

* "Group robot configuration" (document/path/91770): A robot accepts 20 messages a minute. A Markdown message
  has at most 4096 bytes of UTF-8, and supports three colors, headings, bold, links, quotes, and inline code.
* "Global error codes" (path/90313): Errors are reported as ``errcode`` with status 200, such as 93000
  (webhook), 45009 (too many messages), and 40058 (parameter).

Apprise treats every response with status 200 as a success and limits the text to 2048 characters, although
WeCom limits bytes. The Markdown of WeCom has no escapes, so look-alikes replace the characters that would be
markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from stallwatch_alerts.channels.chats.base import CodedChat, Markdown, fit, headline
from stallwatch_alerts.channels.http import Answer, Request
from stallwatch_alerts.notice import Notice
from stallwatch_rules.text.lazy import lazy

_LIMIT = 4096
_COLOURS = {"failure": "warning", "warning": "warning", "info": "comment", "success": "info"}
_LOOK_ALIKES = str.maketrans({"<": "‹", ">": "›", "*": "∗", "`": "'"})
_LINK = lazy(r"\](?=\s*\()")
_HEADING = lazy(r"^(\s*)#(?=#*\s)")


class WeCom(CodedChat):
    """Sends notices to one robot in one WeCom group."""

    name = "wecom"
    title = "WeCom"
    pauses: ClassVar = {"45009": 60.0, "45033": 60.0}

    def __init__(self, plugin: Any) -> None:
        self._url = plugin.api_url

    def requests(self, notice: Notice) -> list[Request]:
        """Return a single request with a Markdown message for the robot."""
        head = f'<font color="{_COLOURS[notice.level]}">**{_plain(headline(notice))}**</font>\n'
        text = head + fit(notice, _LIMIT - len(head.encode()), _MARKDOWN, lambda text: len(text.encode()))
        body: dict[str, Any] = {"msgtype": "markdown", "markdown": {"content": text}}
        return [Request(self._url, body)]

    def refusal(self, answer: Answer) -> tuple[str, str] | None:
        """Return the error code and message. Omit WeCom's hint and the requester's IP address."""
        refusal = super().refusal(answer)
        return refusal and (refusal[0], refusal[1].split(", hint")[0])


def _plain(text: str) -> str:
    return _HEADING.sub(r"\1＃", _LINK.sub("] ", text.translate(_LOOK_ALIKES)))


def _quote(lines: Sequence[str]) -> str:
    return "\n".join(f"> {_plain(line)}" for line in lines)


_MARKDOWN = Markdown(_plain, _quote)
