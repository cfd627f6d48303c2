"""Patterns as they are looked for in the raw bytes of a log, before anything is taken off its lines.

A raw line may have a launcher's prefix before it, a carriage return behind it, or be wrapped in a container's
record. So what stands for a line's start or end is let go: the raw form is found wherever the pattern is, and
elsewhere too. Whoever reads the line decides.
"""

from __future__ import annotations

import functools
import re

from stallwatch_rules.pages.patterns import widened
from stallwatch_rules.text.lazy import lazy

_START = r"(?:^|\W)"  # a prefix ends in a blank or a sign
_TOKEN = lazy(
    r"\\Q.*?(?:\\E|$)|\\[pPx]\{[^}]*\}|\\."  # quoted text, named or numbered characters, escapes
    r"|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]"  # classes
    r"|(?P<start>\^)|(?P<end>\$)"
)
# What may reach over a line's end or into another segment of it.
_CROSSING = lazy(r"\[\^|\\[sWDPp]|\[[^\]]*\\[sWD]|(?<!\\)\.|\(\?i\)")


@functools.lru_cache(maxsize=8192)  # a start asks for each of them several times
def raw_form(pattern: str) -> str:
    """The pattern to look for in raw bytes."""
    return _TOKEN.sub(_freed, widened(pattern))


def certain(pattern: str) -> bool:
    """Whether a place where the raw form is found is sure to be one where the pattern matches its line."""
    return widened(pattern) == pattern and raw_form(pattern) == pattern and not _CROSSING.search(pattern)


def anchored(pattern: str) -> bool:
    """Whether the pattern says where on its line it stands: then the line's prefixes matter."""
    return any(token["start"] or token["end"] for token in _TOKEN.finditer(pattern))


def _freed(token: re.Match[str]) -> str:
    if token["start"]:
        return _START
    return "" if token["end"] else token.group()
