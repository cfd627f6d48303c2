"""Split a message's text into blocks for chats with markup: prose with labels, code, and links.

Messages are composed, grouped, and stored as plain text. Blank lines separate the blocks. Literal lines
from a log or a stack begin with four spaces. Each link is a line at the end with a label and an address.
Only Stallwatch writes addresses, because ``neutral`` removes addresses from log text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import groupby

import msgspec

from stallwatch_alerts.neutral import clipped
from stallwatch_rules.locale import LANGUAGES, templates
from stallwatch_rules.text.lazy import lazy

_INDENT = "    "
_LINK = lazy(r"(?P<label>[^:：]{1,30})[:：] ?(?P<url>https?://[^\s<>\"|\\^`{}]+)")
_FONT = "font-family:system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif;font-size:14px"
_PRE = (
    "background:#f4f4f5;border-radius:6px;padding:8px 12px;font-size:13px;"
    "white-space:pre-wrap;overflow-wrap:anywhere"
)


class Prose(msgspec.Struct, frozen=True):
    """Lines of prose, each split into a label and the remaining text. A label ends in a colon or is empty."""

    lines: tuple[tuple[str, str], ...]


class Code(msgspec.Struct, frozen=True):
    """Literal lines from a log or a stack."""

    lines: tuple[str, ...]


class Links(msgspec.Struct, frozen=True):
    """The labels and addresses of links."""

    links: tuple[tuple[str, str], ...]


Block = Prose | Code | Links


def blocks_of(text: str) -> list[Block]:
    """Split text into blocks. Joining the blocks produces text that has the same content."""
    found: list[Block] = []
    for part in re.split(r"\n[ \t]*\n", text.strip("\n")):
        for kind, lines in groupby(part.split("\n"), _kind):
            found.append(_block(kind, list(lines)))
    return found


def _kind(line: str) -> str:
    if line.startswith(_INDENT):
        return "code"
    return "links" if _LINK.fullmatch(line) else "prose"


def _block(kind: str, lines: list[str]) -> Block:
    if kind == "code":
        return Code(tuple(line[len(_INDENT) :] for line in lines))
    if kind == "links":
        found = [_LINK.fullmatch(line) for line in lines]
        return Links(tuple((link["label"], link["url"]) for link in found if link is not None))
    return Prose(tuple(_labelled(line) for line in lines))


@cache
def _labels() -> tuple[str, ...]:
    """Return the labels to highlight in messages, such as ``Likely cause:`` and ``Evidence:``."""
    keys = ("run", "place", "cause", "stall-cause", "evidence", "fixes", "ended", "look", "also-seen", "also")
    known = [templates(language, "alerts")[key] for language in LANGUAGES for key in keys]
    found = {match[0] for template in known if (match := re.match(r"[^:：{]+[:：]", template)) is not None}
    return tuple(sorted(found, key=len, reverse=True))


def _labelled(line: str) -> tuple[str, str]:
    for label in _labels():
        if line.startswith(label):
            return label, line[len(label) :]
    return "", line


def bold_label(label: str, rest: str) -> str:
    """Return a line of prose in Markdown. `rest` is already escaped.

    The space is required, because CommonMark does not accept ``**`` as the end of bold text between a
    full-width colon and a letter.
    """
    return f"**{label}** {rest.lstrip()}".rstrip() if label else rest


def address(url: str) -> str:
    """Return the address, escaped for the parentheses of a Markdown link."""
    return url.replace("(", "%28").replace(")", "%29")


def shortened(text: str, limit: int) -> str:
    """Return the text truncated to at most `limit` characters, without truncating the links at its end."""
    if len(text) <= limit:
        return text
    head, _, tail = text.rpartition("\n\n")
    if tail and len(tail) < limit and all(_LINK.fullmatch(line) for line in tail.split("\n")):
        return f"{clipped(head, limit - len(tail) - 2)}\n\n{tail}"
    return clipped(text, limit)


def fitted(blocks: Sequence[Block], limit: int, size: Callable[[Sequence[Block]], int]) -> list[Block]:
    """Return the blocks, shortened to fit into `limit`. `size` measures blocks in the chat's markup.

    The text is truncated before it is converted to markup, so that all markup is closed and no character is
    split. Links are removed last.
    """
    if size(blocks) <= limit:
        return list(blocks)
    low, high = 0, sum(_length(block) for block in blocks)
    while low < high:
        middle = (low + high + 1) // 2
        if size(_cut(blocks, middle)) <= limit:
            low = middle
        else:
            high = middle - 1
    kept = _cut(blocks, low)
    return kept if size(kept) <= limit else []


def _length(block: Block) -> int:
    if isinstance(block, Links):
        return 0
    return sum(len(line if isinstance(line, str) else "".join(line)) + 1 for line in block.lines)


def _cut(blocks: Iterable[Block], room: int) -> list[Block]:
    kept: list[Block] = []
    for block in blocks:
        if isinstance(block, Links):
            kept.append(block)
        elif room > 0:
            length = _length(block)
            kept.append(block if length <= room else _shortened(block, room))
            room -= length
    return kept


def _shortened(block: Prose | Code, room: int) -> Block:
    if isinstance(block, Code):
        return Code(tuple(_taken(block.lines, room)))
    whole = ["".join(line) for line in block.lines]
    return Prose(tuple(_labelled(line) for line in _taken(whole, room)))


def _taken(lines: Iterable[str], room: int) -> list[str]:
    taken: list[str] = []
    for line in lines:
        if len(line) + 1 > room:
            taken.append(clipped(line, room))
            break
        taken.append(line)
        room -= len(line) + 1
    return taken


def html_page(text: str) -> str:
    """Return the text as one HTML element for email, with all markup escaped."""
    return f'<div style="{_FONT}">' + "".join(_as_html(block) for block in blocks_of(text)) + "</div>"


def _as_html(block: Block) -> str:
    if isinstance(block, Code):
        return f'<pre style="{_PRE}">{html.escape(chr(10).join(block.lines))}</pre>'
    if isinstance(block, Links):
        links = (f'<a href="{html.escape(url)}">{html.escape(label)}</a>' for label, url in block.links)
        return f"<p>{' · '.join(links)}</p>"
    lines = (
        f"<strong>{html.escape(label)}</strong>" * bool(label) + html.escape(rest)
        for label, rest in block.lines
    )
    return f"<p>{'<br/>'.join(lines)}</p>"
