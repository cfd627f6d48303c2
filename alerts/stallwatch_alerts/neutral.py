"""Make log text safe for chats: remove mentions, links, and characters that change the layout.

A log line can contain any text. For example, ``<!channel>`` in a line must not notify an entire company.
"""

from __future__ import annotations

import re
import unicodedata

from stallwatch_rules.text.controls import without_controls
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.redact import redact

# Look-alikes are used instead of escapes, because escapes differ between chats, and no chat interprets
# look-alikes.
_LOOK_ALIKES = str.maketrans(
    {
        "<": "‹",  # used in <!channel>, <at id=all>, and HTML
        ">": "›",
        "`": "'",
        "*": "∗",
        "~": "∼",
    }
)
_ORIGINALS = {ord(alike): chr(code) for code, alike in _LOOK_ALIKES.items() if alike != "'"}
_MENTION = lazy(r"@(?=\S)")  # matches @here, @everyone, @all, <@U123>, but not "cache @ step 10"
_ENTITY = lazy(r"&(?=#?\w{1,10};)")
_LINK = lazy(r"\](?=\s*[(\[])|(?<=[A-Za-z]):(?=//)|:\|\||\|\|")
_JOINERS = "\u200d\ufe0e\ufe0f"
_BREAKS = lazy(r"[\r\n\t\v\f\x85\u2028\u2029]+")


def neutralise(text: str, limit: int = 0) -> str:
    """Return one line of at most `limit` characters that contains no secrets, mentions, markup, or links.

    Question marks replace lone surrogates, which cannot be encoded in a request.
    """
    if limit:
        text = text[: 4 * limit]  # limits the processing time, because a log line can be a gigabyte long
    text = _BREAKS.sub(" ", redact(text)).encode(errors="replace").decode()
    text = without_controls(text).translate(_LOOK_ALIKES)
    text = _ENTITY.sub("＆", _MENTION.sub("＠", text))
    text = _LINK.sub(_break_link, text).strip()
    return clipped(text, limit) if limit else text


def with_originals(text: str) -> str:
    """Replace the look-alikes of `neutralise` with the original characters, for a terminal."""
    return text.translate(_ORIGINALS)


def _break_link(found: re.Match[str]) -> str:
    return {"]": "] ", ":": "[:]"}.get(found[0], "| |")


def clipped(text: str, limit: int) -> str:
    """Return the text truncated to `limit` characters. A truncated text ends in an ellipsis.

    The truncation never splits a visible character, such as a letter with an accent or a colored emoji.
    """
    if len(text) <= limit:
        return text
    end = max(0, limit - 1)
    while 0 < end < len(text) and (_joins(text[end]) or text[end - 1] == "\u200d"):
        end -= 1
    return text[:end].rstrip() + "…"


def _joins(char: str) -> bool:
    return unicodedata.combining(char) != 0 or char in _JOINERS or "🏻" <= char <= "🏿"
