"""A rule page's Markdown as plain text: a chat shows it the same everywhere."""

from __future__ import annotations

import re

from stallwatch_alerts.neutral import shorten

_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|<https?://[^>\s]*>")
_BARE_LINK = re.compile(r"\s*\(?https?://[^\s)]+\)?")
_STRONG = re.compile(r"(\*\*|__)(?=\S)(.+?)(?<=\S)\1")


def plain(markdown: str, limit: int) -> str:
    """The first paragraph, its links replaced by their words and its marks taken off, cut at `limit`."""
    text = " ".join(markdown.strip().split("\n\n")[0].split())
    text = _LINK.sub(lambda found: found[1] or "", text)
    text = _BARE_LINK.sub("", text)
    text = _STRONG.sub(r"\2", text).replace("`", "")
    return shorten(text, limit)
