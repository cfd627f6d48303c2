"""Send notices through Telegram bots.

The documentation at core.telegram.org/bots/api says:

* "sendMessage" and "editMessageText": A message has 1 to 4096 characters, counted in UTF-16 units after
  entities are parsed.
* "ReplyParameters": A reply can be sent as a plain message if the original message was deleted.
* "HTML style": Only ``<``, ``>``, and ``&`` are escaped.
* "LinkPreviewOptions": Link previews can be disabled.
* "Making requests" and "ResponseParameters": An error is reported by ``error_code`` and ``description``, with
  ``retry_after`` or ``migrate_to_chat_id``.

Words that contain a dot are sent as code. Otherwise, Telegram turns words such as ``train.py`` into links,
because .py is a country's top-level domain.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import partial
from typing import Any

from stallwatch_alerts.channels.chats.base import Chat, Place, fit, headline, joined, utf16_units
from stallwatch_alerts.channels.http import Answer, Request
from stallwatch_alerts.messages.layout import Block, Code, Links
from stallwatch_alerts.notice import Notice
from stallwatch_rules.text.lazy import lazy

_LIMIT = 4096
# A match starts only at the beginning of a word. Otherwise, the search time would be quadratic in the length
# of a word.
_DOTTED = lazy(r"(?<![\w/\\-])[\w/\\-]*\w\.[A-Za-z]\w*(?:[\w./:-]*\w)?")
_TAG = lazy(r"<[^>]*>")


class Telegram(Chat):
    """Sends notices through one bot to its chats."""

    name = "telegram"
    title = "Telegram"

    def __init__(self, plugin: Any) -> None:
        self._url = f"{plugin.notify_url}{plugin.bot_token}/sendMessage"
        self._edit = f"{plugin.notify_url}{plugin.bot_token}/editMessageText"
        self._targets = plugin.targets
        self._silent = bool(plugin.silent)

    def requests(self, notice: Notice) -> list[Request]:
        """Return one request for each chat of the URL."""
        body = self._body(notice)
        found = []
        for chat, topic in self._targets:
            payload = {
                **body,
                "chat_id": chat,
                "disable_notification": self._silent or notice.level == "info",
            }
            if topic:
                payload["message_thread_id"] = topic
            found.append(Request(self._url, payload))
        return found

    def place(self, answer: Answer) -> Place | None:
        """Return the IDs of the chat and the message, or `None` if the response has no IDs."""
        try:
            result = answer.json()["result"]
            return {"chat_id": result["chat"]["id"], "message_id": result["message_id"]}
        except (KeyError, TypeError):
            return None

    def edits(self, notice: Notice, places: Sequence[Place]) -> list[Request]:
        """Return one ``editMessageText`` request for each posted message."""
        return [Request(self._edit, {**self._body(notice), **place}) for place in places]

    def replies(self, notice: Notice, places: Sequence[Place]) -> list[Request]:
        """Return one reply for each posted message.

        If the posted message was deleted, Telegram sends a plain message instead of a reply.
        """
        found = []
        for request, place in zip(self.requests(notice), places, strict=True):
            answered = {"message_id": place["message_id"], "allow_sending_without_reply": True}
            found.append(Request(request.url, {**request.body, "reply_parameters": answered}))
        return found

    def _body(self, notice: Notice) -> dict[str, Any]:
        head = f"<b>{_prose(headline(notice))}</b>"
        rest = fit(notice, _LIMIT - _length(head) - 2, partial(joined, write=_written), _length)
        return {
            "text": f"{head}\n\n{rest}".rstrip(),
            "parse_mode": "HTML",
            "link_preview_options": {"is_disabled": True},
        }

    def refusal(self, answer: Answer) -> tuple[str, str] | None:
        """Return the Telegram error code and description, or `None` on success."""
        body = answer.json()
        if answer.ok and body.get("ok") is True:
            return None
        parameters = body.get("parameters")
        code = str(body.get("error_code") or answer.code())
        description = str(body.get("description") or code)
        if isinstance(parameters, dict) and "migrate_to_chat_id" in parameters:
            code, description = "migrated", f"{description}; its new ID is {parameters['migrate_to_chat_id']}"
        elif "chat not found" in description:
            code = "chat-not-found"
        return code, f"{answer.status}: {description}"


def _written(block: Block) -> str:
    if isinstance(block, Code):
        return "<pre>" + _escaped("\n".join(block.lines)) + "</pre>"
    if isinstance(block, Links):
        links = (f'<a href="{html.escape(url)}">{_escaped(label)}</a>' for label, url in block.links)
        return " · ".join(links)
    lines = (f"<b>{_escaped(label)}</b>" * bool(label) + _prose(rest) for label, rest in block.lines)
    return "\n".join(lines)


def _prose(text: str) -> str:
    found, at = [], 0
    for word in _DOTTED.finditer(text):
        found += [_escaped(text[at : word.start()]), f"<code>{_escaped(word[0])}</code>"]
        at = word.end()
    return "".join([*found, _escaped(text[at:])])


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)


def _length(markup: str) -> int:
    return utf16_units(html.unescape(_TAG.sub("", markup)))
