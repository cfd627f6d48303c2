"""Log text made safe to show in a chat: it can mention nobody, link nowhere and change no layout.

Evidence comes from whatever a training printed. A line with ``<!channel>`` in it must not wake a company.
"""

from __future__ import annotations

import re
import unicodedata

from stallwatch_rules.text.controls import without_controls
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.redact import redact

# Look-alikes instead of escapes: every chat has other escapes, none reads meaning into these.
_LOOK_ALIKES = str.maketrans(
    {
        "<": "‹",  # <!channel>, <at id=all>, HTML
        ">": "›",
        "`": "'",
        "*": "∗",
        "~": "∼",
    }
)
_MENTION = lazy(r"@(?=\S)")  # @here, @everyone, @all, <@U123>; not the one in "cache @ step 10"
_ENTITY = lazy(r"&(?=#?\w{1,10};)")
_LINK = lazy(r"\](?=\s*[(\[])|(?<=[A-Za-z]):(?=//)|:\|\||\|\|")
_JOINERS = "\u200d\ufe0e\ufe0f"
_BREAKS = lazy(r"[\r\n\t\v\f\x85\u2028\u2029]+")


def neutralise(text: str, limit: int = 0) -> str:
    """One line of plain text: no secret, mention, markup, link or control character; cut at `limit`."""
    if limit:
        text = text[: 4 * limit]  # the rest would be cut anyway; a log line may be a gigabyte
    text = _BREAKS.sub(" ", redact(text))
    text = without_controls(text).translate(_LOOK_ALIKES)
    text = _ENTITY.sub("＆", _MENTION.sub("＠", text))
    text = _LINK.sub(_break_link, text).strip()
    return clipped(text, limit) if limit else text


def _break_link(found: re.Match[str]) -> str:
    return {"]": "] ", ":": "[:]"}.get(found[0], "| |")


def clipped(text: str, limit: int) -> str:
    """At most `limit` characters, the last an ellipsis where something is missing.

    What is one character to the eye (an accent, an emoji's colour) stays one.
    """
    if len(text) <= limit:
        return text
    end = max(0, limit - 1)
    while 0 < end < len(text) and (_joins(text[end]) or text[end - 1] == "\u200d"):
        end -= 1
    return text[:end].rstrip() + "…"


def _joins(char: str) -> bool:
    return unicodedata.combining(char) != 0 or char in _JOINERS or "🏻" <= char <= "🏿"
