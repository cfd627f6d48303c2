r"""Send notices to custom robots of DingTalk.

The documentation at open.dingtalk.com says:

* "Custom robot access" (document/robots/custom-robot-access): A message has at most 20,000 bytes. After 20
  messages in a minute, a robot is blocked for ten minutes. Errors are reported as ``errcode`` in a response
  with status 200: 310000 (signature, keyword, or address), 130101 (too many messages), and 300001 or 400xxx
  (token).
* "Security settings" (customize-robot-security-settings): The URL is signed with the HMAC-SHA256 of
  ``timestamp\nsecret``, keyed by the secret. The timestamp is in milliseconds and must differ from the
  current time by less than an hour.

Apprise 2.2.0 treats every response with status 200 as a success and encodes the signature twice (with
``quote`` in ``get_signature``, and again in ``requests``). To notify people, the text of a Markdown message
must also mention them. Apprise does not add these mentions.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from stallwatch_alerts.channels.chats.base import CodedChat, Markdown, fit, headline, json_bytes
from stallwatch_alerts.channels.http import Answer, Request
from stallwatch_alerts.messages.layout import Block
from stallwatch_alerts.notice import Notice
from stallwatch_rules.text.lazy import lazy

_LIMIT = 19_500
# An underscore within a word is not markup, so option names stay unchanged.
_MARKS = lazy(r"([\\*~`<|]|(?<=\])\(|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[#>])")
_SETTINGS = {"sign": "sign", "timestamp": "sign", "keywords?": "keyword", "ip": "ip"}


class DingTalk(CodedChat):
    """Sends notices to one robot in one DingTalk group."""

    name = "dingtalk"
    title = "DingTalk"
    pauses: ClassVar = {"130101": 600.0}

    def __init__(self, plugin: Any) -> None:
        self._url = plugin.notify_url.format(token=plugin.token)
        self._secret = plugin.secret
        self._people = list(plugin.targets)

    def requests(self, notice: Notice) -> list[Request]:
        """Return a single request with a Markdown message for the robot."""
        body = fit(notice, _LIMIT, lambda blocks: self._body(notice, blocks), json_bytes)
        signed = signature(self._secret, int(time.time() * 1000)) if self._secret else {}
        return [Request(self._url, body, params=signed)]

    def refusal(self, answer: Answer) -> tuple[str, str] | None:
        """Return the error code and message, or `None` on success.

        If the code is 310000, the security setting that the message names replaces the code.
        """
        refusal = super().refusal(answer)
        if refusal is not None and refusal[0] == "310000":
            for word, setting in _SETTINGS.items():
                if re.search(rf"\b{word}\b", refusal[1].lower()):
                    return setting, refusal[1]
        return refusal

    def _body(self, notice: Notice, blocks: Sequence[Block]) -> dict[str, Any]:
        text = f"### {_escaped(headline(notice))}\n\n{_MARKDOWN(blocks)}\n\nStallwatch"
        if self._people:
            text += " " + " ".join(f"@{number}" for number in self._people)
        return {
            "msgtype": "markdown",
            "markdown": {"title": headline(notice), "text": text},
            "at": {"atMobiles": self._people, "isAtAll": False},
        }


def signature(secret: str, now: int) -> dict[str, str]:
    """Return the URL parameters ``timestamp`` (milliseconds) and ``sign``, which are not URL-encoded."""
    digest = hmac.new(secret.encode(), f"{now}\n{secret}".encode(), hashlib.sha256).digest()
    return {"timestamp": str(now), "sign": base64.b64encode(digest).decode()}


def _escaped(text: str) -> str:
    return _MARKS.sub(r"\\\1", text)


def _quote(lines: Sequence[str]) -> str:
    return "  \n".join(f"> {_escaped(line)}" for line in lines)


# Code is sent as quotes, because the DingTalk documentation describes no code blocks. Two spaces
# end a line.
_MARKDOWN = Markdown(_escaped, _quote, "  \n")
