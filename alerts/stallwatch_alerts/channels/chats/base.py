"""Define the interface of a chat, which converts notices to requests and interprets the responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from stallwatch_alerts.channels.errors import ChannelError
from stallwatch_alerts.channels.http import Answer, Request, retry_after
from stallwatch_alerts.messages.layout import Block, Code, Links, address, blocks_of, bold_label, fitted
from stallwatch_alerts.notice import SIGNS, Notice

Place = Mapping[str, Any]  #: IDs that locate a message in its chat; edits and replies need these IDs

Written = TypeVar("Written")


def headline(notice: Notice) -> str:
    """Return the title of the notice, preceded by the emoji of the notice's level."""
    return f"{SIGNS[notice.level]} {notice.message.title}"


class Chat:
    """An interface to a chat. It writes the requests for a notice and interprets the chat's responses.

    A chat that can edit its messages returns the location of each message (`place`) and overrides `edits` and
    `replies`.
    """

    name: str  #: the chat's section of ``advice.json``
    title: str  #: the chat's name in error messages

    #: seconds to wait after an error, by error code; used if the response does not request a wait
    pauses: ClassVar[Mapping[str, float]] = {}

    def requests(self, notice: Notice) -> list[Request]:
        """Return one request for each target of the URL."""
        raise NotImplementedError

    def refusal(self, answer: Answer) -> tuple[str, str] | None:
        """Return the error code and description of a refusal, or `None` if the chat accepted the message."""
        raise NotImplementedError

    def place(self, answer: Answer) -> Place | None:  # noqa: ARG002
        """Return the location of the message from a response, or `None` if the chat does not report one."""
        return None

    def edits(self, notice: Notice, places: Sequence[Place]) -> list[Request]:  # noqa: ARG002
        """Return one request for each message in `places`. Each replaces its message with the notice."""
        return []

    def replies(self, notice: Notice, places: Sequence[Place]) -> list[Request]:  # noqa: ARG002
        """Return requests that send the notice, if possible as replies to the messages at `places`."""
        return self.requests(notice)

    def failure(self, answer: Answer) -> ChannelError | None:
        """Return the error that a response reports, or `None` if the chat accepted the message."""
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
    """A chat that reports errors by a code in the body, even with status 200. Code 0 means success."""

    code_keys: ClassVar[Sequence[str]] = ("errcode",)
    message_key: ClassVar[str] = "errmsg"

    def refusal(self, answer: Answer) -> tuple[str, str] | None:
        """For any HTTP status, return the error code and message from the body, or `None` on success."""
        body = answer.json()
        code = next((body[key] for key in self.code_keys if key in body), None)
        if answer.ok and code == 0:
            return None
        shown = answer.code(code)
        return shown, f"{shown}: {body.get(self.message_key) or answer.status}"


@dataclass(frozen=True)
class Markdown:
    """The Markdown dialect of a chat: how it escapes markup, shows literal lines, and breaks lines."""

    escape: Callable[[str], str]
    code: Callable[[Sequence[str]], str]
    line_end: str = "\n"

    def __call__(self, blocks: Sequence[Block]) -> str:
        """Return the Markdown text of the blocks."""
        return joined(blocks, self._block)

    def _block(self, block: Block) -> str:
        if isinstance(block, Code):
            return self.code(block.lines)
        if isinstance(block, Links):
            return " · ".join(f"[{self.escape(label)}]({address(url)})" for label, url in block.links)
        return self.line_end.join(bold_label(label, self.escape(rest)) for label, rest in block.lines)


def joined(blocks: Sequence[Block], write: Callable[[Block], str]) -> str:
    """Return the text of all blocks, with a blank line before each block that is not a code block."""
    found = ""
    for block in blocks:
        between = "" if not found else "\n" if isinstance(block, Code) else "\n\n"
        found += between + write(block)
    return found


def fit(
    notice: Notice, limit: int, write: Callable[[Sequence[Block]], Written], size: Callable[[Written], int]
) -> Written:
    """Return the output of `write` for the notice, shortened until its `size` is at most `limit`."""
    return write(fitted(blocks_of(notice.message.text), limit, lambda blocks: size(write(blocks))))


def json_bytes(body: Mapping[str, Any]) -> int:
    """Return the size in bytes of a request's JSON-encoded body."""
    return len(json.dumps(body, ensure_ascii=False).encode())


def utf16_units(text: str) -> int:
    """Return the length of the text in UTF-16 code units, because some chats limit this length."""
    return len(text.encode("utf-16-le")) // 2
