"""DingTalk: custom robots.

Documented at open.dingtalk.com, "Custom robot access" (document/robots/custom-robot-access) and "Security
settings" (customize-robot-security-settings): the signature in the address (the HMAC-SHA256 of
``timestamp\\nsecret`` with the secret as its key, milliseconds, an hour off is too much), at most 20,000
bytes, 20 messages a minute and then none for ten, errors as ``errcode`` in a 200: 310000 (signature, key
word or address), 130101 (too many), 300001 and 400xxx (token).

Apprise 2.2.0 takes every 200 for a success, and encodes the signature twice (``quote`` in
``get_signature``, again in ``requests``). People who are to be called must also stand in a Markdown
message's text, which Apprise leaves out.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable, Sequence
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

_LIMIT = 19_500
_TOO_MANY = "130101"
_BANNED = 600.0
# An underscore within a word is no mark: names of options stay as they are.
_MARKS = lazy(r"([\\*~`<]|(?<=\])\(|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[#>])")


class DingTalk:
    """One robot of one group."""

    name = "dingtalk"

    def __init__(self, plugin: Any, clock: Callable[[], float] = time.time) -> None:
        self._url, _, self._query = plugin.notify_url.format(token=plugin.token).partition("?")
        self._secret = plugin.secret or ""
        self._people = list(plugin.targets)
        self._clock = clock

    def requests(self, notice: Notice) -> list[Request]:
        """One Markdown message."""
        blocks = blocks_of(notice.message.text)
        kept = fitted(
            blocks,
            _LIMIT,
            lambda some: len(json.dumps(self._body(notice, some), ensure_ascii=False).encode()),
        )
        params = dict(part.split("=", 1) for part in self._query.split("&"))
        if self._secret:
            params |= signature(self._secret, int(self._clock() * 1000))
        return [Request(self._url, self._body(notice, kept), params=params)]

    def fault(self, answer: Answer) -> ChannelError | None:
        """The code in the body, whatever HTTP says."""
        said = answer.json()
        code = said.get("errcode")
        if answer.ok and code == 0:
            return None
        shown = answer.code(code)
        message = str(said.get("errmsg") or answer.status)
        if shown == "310000":
            shown = _which(message)
        wait = retry_after(answer)
        return ChannelError(
            f"DingTalk answered {code if isinstance(code, int) else shown}: {message}",
            chat=self.name,
            code=shown,
            retry_after=_BANNED if wait is None and shown == _TOO_MANY else wait,
        )

    def _body(self, notice: Notice, blocks: Sequence[Block]) -> dict[str, Any]:
        text = f"### {_escaped(headline(notice))}\n\n{written(blocks)}\n\nStallwatch"
        if self._people:
            text += " " + " ".join(f"@{number}" for number in self._people)
        return {
            "msgtype": "markdown",
            "markdown": {"title": headline(notice), "text": text},
            "at": {"atMobiles": self._people, "isAtAll": False},
        }


def signature(secret: str, now: int) -> dict[str, str]:
    """``timestamp`` (milliseconds) and ``sign``, not encoded yet."""
    digest = hmac.new(secret.encode(), f"{now}\n{secret}".encode(), hashlib.sha256).digest()
    return {"timestamp": str(now), "sign": base64.b64encode(digest).decode()}


def _which(message: str) -> str:
    """310000 stands for three settings; the message says which."""
    for word, which in (("sign", "sign"), ("timestamp", "sign"), ("keywords?", "keyword"), ("ip", "ip")):
        if re.search(rf"\b{word}\b", message.lower()):
            return which
    return "310000"


def written(blocks: Sequence[Block]) -> str:
    """DingTalk's Markdown: quotes, as it documents no code; two spaces end a line."""
    return joined(blocks, _written)


def _written(block: Block) -> str:
    if isinstance(block, Code):
        return "  \n".join(f"> {_escaped(line)}" for line in block.lines)
    return in_markdown(block, _escaped, "  \n")


def _escaped(text: str) -> str:
    return _MARKS.sub(r"\\\1", text)
