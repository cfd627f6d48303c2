"""Discord webhooks.

Documented at discord.com/developers/docs: "Webhook resource", "Execute Webhook" (without ``wait=true`` a
message that is not saved is no error; with it the answer is the message), "Edit Webhook Message" (a PATCH),
"Message resource", "Embed limits" (title 256, description 4096, 6000 in all) and "Allowed mentions", "Rate
limits" (429 with ``retry_after`` in seconds in the body and ``Retry-After``).

Apprise sends without ``wait=true`` and without ``allowed_mentions``, and on a 429 it sends again at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stallwatch_alerts.channels.errors import ChannelError
from stallwatch_alerts.channels.faces import COLOURS, headline
from stallwatch_alerts.channels.posting import Answer, Request, retry_after
from stallwatch_alerts.messages.layout import (
    Block,
    Code,
    blocks_of,
    clipped,
    fitted,
    in_markdown,
    joined,
)
from stallwatch_alerts.notice import Notice
from stallwatch_rules.text.lazy import lazy

_TITLE, _DESCRIPTION = 256, 4096
_MARKS = lazy(r"([\\*_~`|<]|(?<=\])\(|^[#>])")


class Discord:
    """One webhook, with its thread where the URL names one."""

    name = "discord"

    def __init__(self, plugin: Any) -> None:
        self._url = f"{plugin.notify_url}/{plugin.webhook_id}/{plugin.webhook_token}"
        self._user = plugin.user
        self._params = {"wait": "true"}
        if plugin.thread_id:
            self._params["thread_id"] = str(plugin.thread_id)

    def requests(self, notice: Notice) -> list[Request]:
        """One embed; nobody can be mentioned by it."""
        body = self._body(notice)
        if self._user:
            body["username"] = self._user
        return [Request(self._url, body, params=self._params)]

    def place(self, answer: Answer) -> Mapping[str, Any] | None:
        """The message's id."""
        said = answer.json()
        return {"id": str(said["id"])} if str(said.get("id", "")).isdecimal() else None

    def edits(self, notice: Notice, places: Sequence[Mapping[str, Any]]) -> list[Request]:
        """A PATCH of the message."""
        params = {name: value for name, value in self._params.items() if name == "thread_id"}
        return [
            Request(f"{self._url}/messages/{place['id']}", self._body(notice), params=params, method="PATCH")
            for place in places
        ]

    def replies(self, notice: Notice, _: Sequence[Mapping[str, Any]]) -> list[Request]:
        """A message of its own: webhooks answer none."""
        return self.requests(notice)

    def _body(self, notice: Notice) -> dict[str, Any]:
        embed: dict[str, Any] = {
            "title": _title(headline(notice)),
            "color": COLOURS[notice.level],
            "description": written(fitted(blocks_of(notice.message.text), _DESCRIPTION, _size)),
        }
        return {"embeds": [embed], "allowed_mentions": {"parse": []}}

    def fault(self, answer: Answer) -> ChannelError | None:
        """Discord's own code where it gave one."""
        said = answer.json()
        if answer.status == 204 or (answer.ok and "id" in said):
            return None
        code = str(said.get("code") or "")
        if not code.isdecimal() or code == "0":
            code = answer.code()
        return ChannelError(
            f"Discord answered {answer.status}: {said.get('message') or code}",
            chat=self.name,
            code=code,
            retry_after=retry_after(answer),
        )


def written(blocks: Sequence[Block]) -> str:
    """Discord's Markdown."""
    return joined(blocks, _written)


def _written(block: Block) -> str:
    if isinstance(block, Code):
        return "```\n" + "\n".join(block.lines).replace("```", "'''") + "\n```"
    return in_markdown(block, _escaped)


def _title(text: str) -> str:
    while _length(_escaped(text)) > _TITLE:
        text = clipped(text, len(text) - 1)
    return _escaped(text)


def _escaped(text: str) -> str:
    return _MARKS.sub(r"\\\1", text)


def _size(blocks: Sequence[Block]) -> int:
    return _length(written(blocks))


def _length(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2  # however Discord counts, this is no less
