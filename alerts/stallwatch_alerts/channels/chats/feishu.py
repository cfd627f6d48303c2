r"""Send notices to custom bots of Feishu and of Lark, the edition of Feishu for users outside China.

The documentation at open.feishu.cn says:

* "Custom bot usage guide" (client-docs/bot-v3/add-custom-bot): A request has at most 20 KB. Its body
  contains the signature, which is the HMAC-SHA256 of an empty message, keyed by ``timestamp\nsecret``.
  Errors are reported as ``code`` in a response with status 200: 9499 (bad request), 11232 (too many
  messages), 19021 (signature), 19022 (address), and 19024 (keyword).
* "Rich text (Markdown) component": HTML entities escape the markup of a card.

Apprise treats every response with status 200 as a success and sends text without a card. It cannot sign
requests, so Stallwatch supports the additional URL parameter ``?secret=``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Sequence
from typing import Any

from apprise.plugins.lark import NotifyLark

from stallwatch_alerts.channels.chats.base import CodedChat, fit, headline, json_bytes
from stallwatch_alerts.channels.http import Request
from stallwatch_alerts.messages.layout import Block, Code, Links, bold_label
from stallwatch_alerts.notice import Notice

_LIMIT = 19_000  # maximum size of a message in bytes; Feishu allows 20 KB, including the signature
_TEMPLATES = {"failure": "red", "warning": "orange", "info": "blue", "success": "green"}
_ENTITIES = str.maketrans({char: f"&#{ord(char)};" for char in "\\`*_[]()<>#~$&"})
_LOOK_ALIKES = str.maketrans({"`": "'", "<": "‹", ">": "›"})


class Feishu(CodedChat):
    """Sends notices to one bot in one Feishu or Lark group."""

    name = "feishu"
    code_keys = ("code", "StatusCode")
    message_key = "msg"
    # The rate limit applies to each minute. Feishu does not document how long it refuses messages after the
    # limit is exceeded.
    pauses = dict.fromkeys(("11232", "11233", "99991400"), 60.0)

    def __init__(self, plugin: Any, secret: str) -> None:
        lark = isinstance(plugin, NotifyLark)
        self.title = "Lark" if lark else "Feishu"
        # The documented address does not end in the slash that Apprise appends for Feishu.
        self._url = plugin.webhook_url if lark else plugin.notify_url.format(token=plugin.token).rstrip("/")
        self._secret = secret

    def requests(self, notice: Notice) -> list[Request]:
        """Return a single request with a card that shows the notice."""
        card = fit(notice, _LIMIT, lambda blocks: _card(notice, blocks), json_bytes)
        signed = signature(self._secret, int(time.time())) if self._secret else {}
        return [Request(self._url, {"msg_type": "interactive", "card": card, **signed})]


def signature(secret: str, now: int) -> dict[str, str]:
    """Return the fields ``timestamp`` (in seconds) and ``sign`` of the request's body.

    The timestamp must differ from the current time by less than an hour.
    """
    digest = hmac.new(f"{now}\n{secret}".encode(), digestmod=hashlib.sha256).digest()
    return {"timestamp": str(now), "sign": base64.b64encode(digest).decode()}


def _card(notice: Notice, blocks: Sequence[Block]) -> dict[str, Any]:
    elements: list[dict[str, Any]] = [_element(block) for block in blocks]
    # A bot can require a keyword in each message, so every card has this note.
    note = {"tag": "plain_text", "content": "Stallwatch"}
    return {
        "config": {"wide_screen_mode": True},
        "header": {
            "template": _TEMPLATES[notice.level],
            "title": {"tag": "plain_text", "content": headline(notice)},
        },
        "elements": [*elements, {"tag": "note", "elements": [note]}],
    }


def _element(block: Block) -> dict[str, Any]:
    if isinstance(block, Code):
        # Fenced code blocks do not support escapes, and some earlier versions of the clients do not
        # support fences. Therefore, look-alikes replace characters that could end a fence or start a tag or a
        # link.
        code = "\n".join(block.lines).translate(_LOOK_ALIKES).replace("](", "] (")
        return {"tag": "markdown", "content": f"```\n{code}\n```"}
    if isinstance(block, Links):
        buttons = [
            {"tag": "button", "type": "default", "url": url, "text": {"tag": "plain_text", "content": label}}
            for label, url in block.links
        ]
        return {"tag": "action", "actions": buttons}
    lines = (bold_label(label, _escaped(rest)) for label, rest in block.lines)
    return {"tag": "markdown", "content": "\n".join(lines)}


def _escaped(text: str) -> str:
    return text.translate(_ENTITIES)
