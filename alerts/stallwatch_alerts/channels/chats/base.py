"""The interface of all chats: a notice becomes requests, an answer becomes a failure or `None`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from stallwatch_alerts.channels.errors import ChannelError
from stallwatch_alerts.channels.http import Answer, Request, retry_after
from stallwatch_alerts.messages.layout import Block, Code, Links, address, blocks_of, bold_label, fitted
from stallwatch_alerts.notice import Notice

Place = Mapping[str, Any]
"""Where a message is: what its chat asks for to edit it, or to answer it."""

Written = TypeVar("Written")

_SIGNS = {"failure": "🔴", "warning": "🟠", "info": "🔵", "success": "🟢"}


def headline(notice: Notice) -> str:
    """Return the title after the sign of its level."""
    return f"{_SIGNS[notice.level]} {notice.message.title}"


class Chat:
    """Writes the requests for a notice, and reads the answers.

    A chat that can edit its messages returns where each is (`place`), and overrides `edits` and `replies`.
    """

    name: str  #: its section of ``advice.json``
    title: str  #: its name in the reasons of failures
    pauses: ClassVar[Mapping[str, float]] = {}  #: seconds to wait by error code, if the answer has none

    def requests(self, notice: Notice) -> list[Request]:
        """Return one request for each of the URL's targets."""
        raise NotImplementedError

    def refusal(self, answer: Answer) -> tuple[str, str] | None:
        """Return the error code and the description of a refusal; `None` if the message was accepted."""
        raise NotImplementedError

    def place(self, answer: Answer) -> Place | None:  # noqa: ARG002
        """Return where the message of this answer is; `None` if the chat does not report it."""
        return None

    def edits(self, notice: Notice, places: Sequence[Place]) -> list[Request]:  # noqa: ARG002
        """Return one request for each of the places, to replace the message there by this notice."""
        return []

    def replies(self, notice: Notice, places: Sequence[Place]) -> list[Request]:  # noqa: ARG002
        """Return the requests of ``requests``, but in the threads of these places if the chat has threads."""
        return self.requests(notice)

    def failure(self, answer: Answer) -> ChannelError | None:
        """Return the error in an answer; `None` if the message was accepted."""
        refusal = self.refusal(answer)
        if refusal is None:
            return None
        code, description = refusal
        wait = retry_after(answer)
        return ChannelError(
            f"{self.title} answered {description}",
            chat=self.name,
            code=code,
            retry_after=self.pauses.get(code) if wait is None else wait,
        )


class CodedChat(Chat):
    """A chat that answers errors with a code in a 200; 0 is success."""

    code_keys: ClassVar[Sequence[str]] = ("errcode",)
    message_key: ClassVar[str] = "errmsg"

    def refusal(self, answer: Answer) -> tuple[str, str] | None:
        """Return the code in the body, whatever the HTTP status."""
        body = answer.json()
        code = next((body[key] for key in self.code_keys if key in body), None)
        if answer.ok and code == 0:
            return None
        shown = answer.code(code)
        return shown, f"{shown}: {body.get(self.message_key) or answer.status}"


@dataclass(frozen=True)
class Markdown:
    """A chat's dialect of Markdown: how it escapes text, shows literal lines and ends a line."""

    escape: Callable[[str], str]
    code: Callable[[Sequence[str]], str]
    line_end: str = "\n"

    def __call__(self, blocks: Sequence[Block]) -> str:
        """Return the blocks as one text."""
        return joined(blocks, self._block)

    def _block(self, block: Block) -> str:
        if isinstance(block, Code):
            return self.code(block.lines)
        if isinstance(block, Links):
            return " · ".join(f"[{self.escape(label)}]({address(url)})" for label, url in block.links)
        return self.line_end.join(bold_label(label, self.escape(rest)) for label, rest in block.lines)


def joined(blocks: Sequence[Block], write: Callable[[Block], str]) -> str:
    """Return the blocks as one text, with a blank line between blocks, but not before code."""
    found = ""
    for block in blocks:
        between = "" if not found else "\n" if isinstance(block, Code) else "\n\n"
        found += between + write(block)
    return found


def fit(
    notice: Notice, limit: int, write: Callable[[Sequence[Block]], Written], size: Callable[[Written], int]
) -> Written:
    """Write as much of the notice's text as fits: `size` of the written text is at most `limit`."""
    return write(fitted(blocks_of(notice.message.text), limit, lambda blocks: size(write(blocks))))


def json_bytes(body: Mapping[str, Any]) -> int:
    """Return the size of a request's body."""
    return len(json.dumps(body, ensure_ascii=False).encode())


def utf16_units(text: str) -> int:
    """Return the length in UTF-16 code units, as some chats count."""
    return len(text.encode("utf-16-le")) // 2
