"""Send notices to Discord webhooks.

The documentation at discord.com/developers/docs ("Webhook resource" and "Message resource") says:

* "Execute Webhook": With ``wait=true``, Discord returns the message. Without this parameter, Discord
  reports no error if the message is not saved.
* "Edit Webhook Message": A PATCH request edits a message.
* "Embed limits": The title has at most 256 characters, the description has at most 4096, and the entire embed
  has at most 6000.
* "Allowed mentions": ``allowed_mentions`` determines which mentions notify users.
* "Rate limits": A refusal has status 429 and the header ``Retry-After``. Its body contains ``retry_after``
  in seconds.

Apprise sends messages without ``wait=true`` and without ``allowed_mentions``, and resends a message
immediately after a response with status 429.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stallwatch_alerts.channels.chats.base import Chat, Markdown, Place, fit, headline, utf16_units
from stallwatch_alerts.channels.http import Answer, Request
from stallwatch_alerts.neutral import clipped
from stallwatch_alerts.notice import Notice
from stallwatch_rules.text.lazy import lazy

# The limits are applied to UTF-16 units. Whether Discord counts these units or characters is unclear, and a
# text never has fewer UTF-16 units than characters.
_TITLE, _DESCRIPTION = 256, 4096
_COLOURS = {"failure": 0xD92D20, "warning": 0xF79009, "info": 0x2E90FA, "success": 0x12B76A}
_MARKS = lazy(r"([\\*_~`|<]|(?<=\])\(|^[#>])")


class Discord(Chat):
    """Sends notices to one webhook or, if the URL names a thread, to the thread. Webhooks cannot reply."""

    name = "discord"
    title = "Discord"

    def __init__(self, plugin: Any) -> None:
        self._url = f"{plugin.notify_url}/{plugin.webhook_id}/{plugin.webhook_token}"
        self._user = {"username": plugin.user} if plugin.user else {}
        self._thread = {"thread_id": str(plugin.thread_id)} if plugin.thread_id else {}

    def requests(self, notice: Notice) -> list[Request]:
        """Return a single request with an embed that cannot mention any user."""
        return [Request(self._url, _body(notice) | self._user, params={"wait": "true", **self._thread})]

    def place(self, answer: Answer) -> Place | None:
        """Return the ID of the posted message, or `None` if the response has no ID."""
        body = answer.json()
        return {"id": str(body["id"])} if str(body.get("id", "")).isdecimal() else None

    def edits(self, notice: Notice, places: Sequence[Place]) -> list[Request]:
        """Return one PATCH request for each message."""
        return [
            Request(f"{self._url}/messages/{place['id']}", _body(notice), params=self._thread, method="PATCH")
            for place in places
        ]

    def refusal(self, answer: Answer) -> tuple[str, str] | None:
        """Return the Discord error code or HTTP status code, and the message. On success, return `None`."""
        body = answer.json()
        if answer.status == 204 or (answer.ok and "id" in body):
            return None
        code = str(body.get("code") or "")
        if not code.isdecimal() or code == "0":
            code = answer.code()
        return code, f"{answer.status}: {body.get('message') or code}"


def _body(notice: Notice) -> dict[str, Any]:
    embed = {
        "title": _title(headline(notice)),
        "color": _COLOURS[notice.level],
        "description": fit(notice, _DESCRIPTION, _MARKDOWN, utf16_units),
    }
    return {"embeds": [embed], "allowed_mentions": {"parse": []}}


def _title(text: str) -> str:
    while utf16_units(_escaped(text)) > _TITLE:
        text = clipped(text, len(text) - 1)
    return _escaped(text)


def _escaped(text: str) -> str:
    return _MARKS.sub(r"\\\1", text)


def _fence(lines: Sequence[str]) -> str:
    return "```\n" + "\n".join(lines).replace("```", "'''") + "\n```"


_MARKDOWN = Markdown(_escaped, _fence)
