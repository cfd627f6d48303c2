"""Telegram bots.

Documented at core.telegram.org/bots/api: "sendMessage" (1 to 4096 characters after entities are parsed;
they are counted in UTF-16), "editMessageText", "ReplyParameters", "HTML style" (only ``<``, ``>`` and ``&``
are escaped), "LinkPreviewOptions", "Making requests" and "ResponseParameters" (``error_code``,
``description``, ``retry_after``, ``migrate_to_chat_id``).

Words with a dot become code: Telegram makes links of ``train.py`` and the like, as .py is a country's
domain.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from stallwatch_alerts.channels.errors import ChannelError
from stallwatch_alerts.channels.faces import headline
from stallwatch_alerts.channels.posting import Answer, Request, retry_after
from stallwatch_alerts.messages.layout import Block, Code, Links, blocks_of, fitted, joined
from stallwatch_alerts.notice import Notice
from stallwatch_rules.text.lazy import lazy

_LIMIT = 4096
# Only from the beginning of a word: tried from each letter, a long word costs the square of its length.
_DOTTED = lazy(r"(?<![\w/\\-])[\w/\\-]*\w\.[A-Za-z]\w*(?:[\w./:-]*\w)?")
_TAG = lazy(r"<[^>]*>")


class Telegram:
    """One bot and its chats."""

    name = "telegram"

    def __init__(self, plugin: Any) -> None:
        self._url = f"{plugin.notify_url}{plugin.bot_token}/sendMessage"
        self._edit = f"{plugin.notify_url}{plugin.bot_token}/editMessageText"
        self._targets = plugin.targets
        self._silent = bool(plugin.silent)

    def requests(self, notice: Notice) -> list[Request]:
        """One for each chat."""
        body = self._body(notice)
        found = []
        for chat, topic in self._targets:
            own = {**body, "chat_id": chat, "disable_notification": self._silent or notice.level == "info"}
            if topic:
                own["message_thread_id"] = topic
            found.append(Request(self._url, own))
        return found

    def place(self, answer: Answer) -> Mapping[str, Any] | None:
        """The chat's and the message's id."""
        result = answer.json().get("result")
        chat = result.get("chat") if isinstance(result, dict) else None
        if not isinstance(result, dict) or not isinstance(chat, dict) or "message_id" not in result:
            return None
        return {"chat_id": chat.get("id"), "message_id": result["message_id"]}

    def edits(self, notice: Notice, places: Sequence[Mapping[str, Any]]) -> list[Request]:
        """By ``editMessageText``."""
        return [Request(self._edit, {**self._body(notice), **place}) for place in places]

    def replies(self, notice: Notice, places: Sequence[Mapping[str, Any]]) -> list[Request]:
        """Each to the message in its chat, if that is still there."""
        found = []
        for request, place in zip(self.requests(notice), places, strict=True):
            answered = {"message_id": place["message_id"], "allow_sending_without_reply": True}
            found.append(Request(request.url, {**request.body, "reply_parameters": answered}))
        return found

    def _body(self, notice: Notice) -> dict[str, Any]:
        head = f"<b>{_prose(headline(notice))}</b>"
        room = _LIMIT - _length(head) - 2
        text = f"{head}\n\n{written(fitted(blocks_of(notice.message.text), room, _size))}"
        return {
            "text": text.rstrip(),
            "parse_mode": "HTML",
            "link_preview_options": {"is_disabled": True},
        }

    def fault(self, answer: Answer) -> ChannelError | None:
        """Telegram's description, and how long it wants to be left alone."""
        said = answer.json()
        if answer.ok and said.get("ok") is True:
            return None
        parameters = said.get("parameters")
        parameters = parameters if isinstance(parameters, dict) else {}
        code = str(said.get("error_code") or answer.code())
        described = str(said.get("description") or code)
        if "migrate_to_chat_id" in parameters:
            code, described = "migrated", f"{described}; its id is {parameters['migrate_to_chat_id']}"
        elif "chat not found" in described:
            code = "chat-not-found"
        return ChannelError(
            f"Telegram answered {answer.status}: {described}",
            chat=self.name,
            code=code,
            retry_after=retry_after(answer),
        )


def written(blocks: Sequence[Block]) -> str:
    """Telegram's HTML."""
    return joined(blocks, _written)


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
    return len(html.unescape(_TAG.sub("", markup)).encode("utf-16-le")) // 2


def _size(blocks: Sequence[Block]) -> int:
    return _length(written(blocks))
