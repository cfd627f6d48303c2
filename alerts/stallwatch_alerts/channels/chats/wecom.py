"""WeCom (WeChat Work): group robots.

Documented at developer.work.weixin.qq.com, "Group robot configuration" (document/path/91770): Markdown of
at most 4096 bytes of UTF-8 with three colours, headings, bold, links, quotes and inline code, 20 messages a
minute; and "Global error codes" (path/90313): errors as ``errcode`` in a 200, such as 93000 (webhook),
45009 (too many), 40058 (parameter).

Apprise takes every 200 for a success, and sends text of at most 2048 characters, where the limit is one of
bytes.

There are no escapes, so what would be a mark becomes its look-alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stallwatch_alerts.channels.errors import ChannelError
from stallwatch_alerts.channels.faces import headline
from stallwatch_alerts.channels.posting import Answer, Request, retry_after
from stallwatch_alerts.messages.layout import (
    Block,
    Code,
    blocks_of,
    fitted,
    in_markdown,
    joined,
)
from stallwatch_alerts.notice import Notice
from stallwatch_rules.text.lazy import lazy

_LIMIT = 4096
_TOO_MANY = {"45009", "45033"}
_PAUSE = 60.0
_COLOURS = {"failure": "warning", "warning": "warning", "info": "comment", "success": "info"}
_LOOK_ALIKES = str.maketrans({"<": "‹", ">": "›", "*": "∗", "`": "'"})
_LINK = lazy(r"\](?=\s*\()")
_HEADING = lazy(r"^(\s*)#(?=#*\s)")


class WeCom:
    """One robot of one group."""

    name = "wecom"

    def __init__(self, plugin: Any) -> None:
        self._url, _, query = plugin.api_url.partition("?")
        self._params = dict(part.split("=", 1) for part in query.split("&"))

    def requests(self, notice: Notice) -> list[Request]:
        """One Markdown message."""
        head = f'<font color="{_COLOURS[notice.level]}">**{_plain(headline(notice))}**</font>\n'
        room = _LIMIT - len(head.encode())
        text = head + written(fitted(blocks_of(notice.message.text), room, _size))
        body: dict[str, Any] = {"msgtype": "markdown", "markdown": {"content": text}}
        return [Request(self._url, body, params=self._params)]

    def fault(self, answer: Answer) -> ChannelError | None:
        """The code in the body, whatever HTTP says."""
        said = answer.json()
        code = said.get("errcode")
        if answer.ok and code == 0:
            return None
        shown = answer.code(code)
        wait = retry_after(answer)
        # The message goes on about hints and a requester's address behind the first comma.
        message = str(said.get("errmsg") or answer.status).split(", hint")[0]
        return ChannelError(
            f"WeCom answered {shown}: {message}",
            chat=self.name,
            code=shown,
            retry_after=_PAUSE if wait is None and shown in _TOO_MANY else wait,
        )


def written(blocks: Sequence[Block]) -> str:
    """WeCom's Markdown."""
    return joined(blocks, _written)


def _written(block: Block) -> str:
    if isinstance(block, Code):
        return "\n".join(f"> {_plain(line)}" for line in block.lines)
    return in_markdown(block, _plain)


def _plain(text: str) -> str:
    return _HEADING.sub(r"\1＃", _LINK.sub("] ", text.translate(_LOOK_ALIKES)))


def _size(blocks: Sequence[Block]) -> int:
    return len(written(blocks).encode())
