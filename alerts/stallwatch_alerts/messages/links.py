"""Links under a message, and a rule page's Markdown as plain text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from stallwatch_alerts.neutral import clipped
from stallwatch_rules.locale import say
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    from stallwatch_rules.pages.page import RulePage

TEXT_LIMIT = 2000  #: of a whole message; without links and groups it is shorter


BLOB = "https://github.com/stallwatch/stallwatch/blob/main"
DOCS = f"{BLOB}/docs/alerts.md"


def runbook_of(page: RulePage) -> str:
    """Return the address of a packaged rule's page; for a user's own page, that of the documentation."""
    path = Path(page.path)
    if "stallwatch_rules" in path.parts[-5:-3]:  # in the catalogue, or in a pack
        inside = path.parts[len(path.parts) - path.parts[::-1].index("stallwatch_rules") :]
        return "/".join((BLOB, "rules/stallwatch_rules", *inside))
    return f"{BLOB}/docs/rules.md"


def link_lines(runbook: str, run: str, dashboard_url: str, language: str) -> str:
    """Return a label and an address per line; empty if there is nothing to link to."""
    lines = [say("alerts.rule-link", language, url=runbook)] if runbook else []
    if dashboard_url and run:
        address = f"{dashboard_url.rstrip('/')}/run?run={quote(run, safe='')}"
        lines.append(say("alerts.page-link", language, url=address))
    return "\n".join(lines)


def with_links(text: str, lines: str, limit: int = TEXT_LIMIT) -> str:
    """Return the text with links under it; a text that is too long is cut above them."""
    return f"{clipped(text, limit - len(lines) - 2)}\n\n{lines}" if lines else clipped(text, limit)


_LINK = lazy(r"!?\[([^\]]*)\]\([^)]*\)|<https?://[^>\s]*>")
_BARE_LINK = lazy(r"\s*\(?https?://[^\s)]+\)?")
_CODE = lazy(r"(`[^`]*`)")
_EMPHASIS = lazy(r"(\*\*|(?<!\w)\*)(?=\S)(.+?)(?<=\S)\1")
_SENTENCE_END = lazy(r"[.!?](?=\s)|[。！？]")
_OPEN_END = (":", "：")  # the list or code that it introduces is left out


def plain(markdown: str, limit: int) -> str:
    """Return the first paragraph without marks, links reduced to their text; at most `limit` characters."""
    text = " ".join(markdown.strip().split("\n\n")[0].split())
    text = _LINK.sub(lambda found: found[1] or "", text)
    text = _BARE_LINK.sub("", text)
    text = "".join(
        part[1:-1] if part.startswith("`") else _EMPHASIS.sub(r"\2", part) for part in _CODE.split(text)
    )
    if len(text) <= limit and not text.endswith(_OPEN_END):
        return text
    ends = [found.end() for found in _SENTENCE_END.finditer(text, 0, limit)]
    # Whole sentences, unless too little would remain.
    if ends and ends[-1] >= min(limit, len(text)) // 3:
        return text[: ends[-1]]
    return clipped(text, limit) if len(text) > limit else text[:-1].rstrip() + "…"
