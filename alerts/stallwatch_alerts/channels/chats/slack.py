"""Send notices through incoming webhooks of Slack or through bots with ``chat.postMessage``.

A bot edits its messages with ``chat.update``. Its replies appear both in the thread and in the channel.

The documentation at docs.slack.dev says:

* "Sending messages using incoming webhooks": The response is ``ok``, or an error code as text with status
  400, 403, 404, or 410.
* "chat.postMessage" and "chat.update": An error is reported as ``"ok": false`` with status 200. The response
  contains the ``channel`` and the ``ts`` of the posted message. ``thread_ts`` and ``reply_broadcast`` turn a
  message into a reply.
* "Rate limits": A refusal has status 429 and the header ``Retry-After``.
* "Blocks", with "Header" and "Rich text": A header has at most 150 characters.
* "Formatting message text": ``&``, ``<``, and ``>`` are escaped in ``text``.

Slack interprets no markup, mentions, or links in rich text. Apprise sends mrkdwn, in which the ``_`` and
``*`` of a log line cannot be escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apprise.plugins.slack import CHANNEL_RE, SlackMode

from stallwatch_alerts.channels.chats.base import Chat, Place, fit, headline
from stallwatch_alerts.channels.http import Answer, Request
from stallwatch_alerts.messages.layout import Block, Code, Links
from stallwatch_alerts.neutral import clipped
from stallwatch_alerts.notice import Notice
from stallwatch_rules.text.lazy import lazy

_HEADER = 150
# Maximum number of characters in all blocks. For more than about 13,000 characters, Slack returns
# "msg_blocks_too_long".
_TEXT = 10_000
_CODE = lazy(r"[a-z][a-z0-9_]{2,60}")


class Slack(Chat):
    """Sends notices to one webhook or, through one bot, to its channels."""

    name = "slack"
    title = "Slack"

    def __init__(self, plugin: Any, targets: Sequence[dict[str, str]]) -> None:
        self._bot = plugin.mode == SlackMode.BOT
        self._user = plugin.user
        self._targets = targets
        if self._bot:
            self._url = plugin.api_url.format("chat.postMessage")
            self._update = plugin.api_url.format("chat.update")
            self._headers = {"Authorization": f"Bearer {plugin.access_token}"}
        else:
            host = plugin.webhook_gov_url if plugin.mode == SlackMode.WEBHOOK_GOV else plugin.webhook_url
            self._url = f"{host}/{plugin.token_a}/{plugin.token_b}/{plugin.token_c}"
            self._headers = {}

    @classmethod
    def of(cls, plugin: Any) -> Slack | None:
        """Return the chat, or `None` if only Apprise can resolve a target (a user's email address)."""
        targets = []
        for channel in plugin.channels:
            target = {}
            if channel is not None:  # a webhook whose URL names no channel sends to its own channel
                found = CHANNEL_RE.match(channel)
                if found is None:
                    return None
                name = found["channel"]
                # As in Apprise, an ID begins with "+", and a name without a prefix is a channel.
                target["channel"] = name[1:] if name[0] == "+" else name if name[0] in "#@" else f"#{name}"
                if found["thread_ts"]:
                    target["thread_ts"] = found["thread_ts"]
            targets.append(target)
        return cls(plugin, targets)

    def requests(self, notice: Notice) -> list[Request]:
        """Return one request for each channel of the URL."""
        body = self._body(notice)
        return [Request(self._url, {**body, **target}, headers=self._headers) for target in self._targets]

    def place(self, answer: Answer) -> Place | None:
        """Return the message's channel ID and timestamp, or `None` for webhooks, which return neither."""
        body = answer.json()
        return {"channel": body["channel"], "ts": body["ts"]} if {"channel", "ts"} <= body.keys() else None

    def edits(self, notice: Notice, places: Sequence[Place]) -> list[Request]:
        """Return one ``chat.update`` request for each posted message."""
        body = {"text": _escaped(headline(notice)), "blocks": _blocks(notice)}
        return [Request(self._update, {**body, **place}, headers=self._headers) for place in places]

    def replies(self, notice: Notice, places: Sequence[Place]) -> list[Request]:
        """Return one reply for each message. A reply appears in the message's thread and in the channel.

        If the URL names a thread, the reply appears only in that thread.
        """
        body = self._body(notice)
        found = []
        for target, place in zip(self._targets, places, strict=True):
            thread = target if "thread_ts" in target else {"thread_ts": place["ts"], "reply_broadcast": True}
            reply = {**body, **thread, "channel": place["channel"]}
            found.append(Request(self._url, reply, headers=self._headers))
        return found

    def _body(self, notice: Notice) -> dict[str, Any]:
        body: dict[str, Any] = {
            "text": _escaped(headline(notice)),  # shown in notifications
            "blocks": _blocks(notice),
            "unfurl_links": False,
            "unfurl_media": False,
        }
        if self._user:
            body["username"] = self._user
        return body

    def refusal(self, answer: Answer) -> tuple[str, str] | None:
        """Return the Slack error code or HTTP status code, and the message. On success, return `None`."""
        body = answer.json()
        if answer.ok and (body.get("ok") is True if self._bot else answer.text.strip() == "ok"):
            return None
        code = str(body.get("error") or answer.text.strip())
        if not _CODE.fullmatch(code):
            code = answer.code()
        return code, f"{answer.status}: {code}"


def _blocks(notice: Notice) -> list[dict[str, Any]]:
    header = {"type": "plain_text", "text": clipped(headline(notice), _HEADER), "emoji": True}
    elements = fit(notice, _TEXT, lambda blocks: [_element(block) for block in blocks], _size)
    found: list[dict[str, Any]] = [{"type": "header", "text": header}]
    if elements:
        found.append({"type": "rich_text", "elements": elements})
    return found


def _element(block: Block) -> dict[str, Any]:
    if isinstance(block, Code):
        text = {"type": "text", "text": "\n".join(block.lines)}
        return {"type": "rich_text_preformatted", "elements": [text]}
    texts: list[dict[str, Any]] = []
    if isinstance(block, Links):
        for label, url in block.links:
            texts += [{"type": "link", "url": url, "text": label}, {"type": "text", "text": "  "}]
        return {"type": "rich_text_section", "elements": texts[:-1]}
    for label, rest in block.lines:
        if label:
            texts.append({"type": "text", "text": label, "style": {"bold": True}})
        texts.append({"type": "text", "text": f"{rest}\n"})
    return {"type": "rich_text_section", "elements": texts}


def _size(elements: Sequence[dict[str, Any]]) -> int:
    return sum(
        len(text.get("text", "")) + len(text.get("url", ""))
        for element in elements
        for text in element["elements"]
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
