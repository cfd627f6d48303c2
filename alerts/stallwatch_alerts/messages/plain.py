"""A rule page's Markdown as plain text: a chat shows it the same everywhere."""

from __future__ import annotations

from stallwatch_alerts.neutral import shorten
from stallwatch_rules.text.lazy import lazy

_LINK = lazy(r"!?\[([^\]]*)\]\([^)]*\)|<https?://[^>\s]*>")
_BARE_LINK = lazy(r"\s*\(?https?://[^\s)]+\)?")
_CODE = lazy(r"(`[^`]*`)")
_EMPHASIS = lazy(r"(\*\*|(?<!\w)\*)(?=\S)(.+?)(?<=\S)\1")
_SENTENCE_END = lazy(r"[.!?](?=\s)|[。！？]")
_OPEN_END = (":", "：")  # what it announces is left out


def plain(markdown: str, limit: int) -> str:
    """The first paragraph, links replaced by their words and marks taken off; at most `limit` long."""
    text = " ".join(markdown.strip().split("\n\n")[0].split())
    text = _LINK.sub(lambda found: found[1] or "", text)
    text = _BARE_LINK.sub("", text)
    text = "".join(
        part[1:-1] if part.startswith("`") else _EMPHASIS.sub(r"\2", part) for part in _CODE.split(text)
    )
    if len(text) <= limit and not text.endswith(_OPEN_END):
        return text
    ends = [found.end() for found in _SENTENCE_END.finditer(text, 0, limit)]
    # Whole sentences, unless they would leave next to nothing.
    if ends and ends[-1] >= min(limit, len(text)) // 3:
        return text[: ends[-1]]
    return shorten(text, limit) if len(text) > limit else text[:-1].rstrip() + "…"
