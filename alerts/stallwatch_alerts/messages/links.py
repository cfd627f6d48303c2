"""Write the links at the end of a message and convert a rule page's Markdown to plain text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from stallwatch_alerts.neutral import clipped
from stallwatch_rules.locale import say
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    from stallwatch_rules.pages.page import RulePage

TEXT_LIMIT = 2000  #: maximum number of characters of a message with its links and groups


@dataclass(frozen=True)
class Runbooks:
    """Finds the addresses of rule pages and guides, on the user's dashboard or on the documentation site."""

    dashboard_url: str = ""
    docs_url: str = ""

    def rule(self, page: RulePage, language: str = "en") -> str:
        """Return the address of a rule's page, or "" if neither the dashboard nor the site has the page."""
        if self.dashboard_url:
            return f"{self.dashboard_url.rstrip('/')}/rules?rule={quote(page.id, safe='')}"
        if not self.docs_url or "stallwatch_rules" not in Path(page.path).parts[-5:-3]:
            return ""  # the site contains only the pages of the catalogue and of packs
        folder = "zh/catalogue" if language == "zh" else "catalogue"
        return f"{self.docs_url.rstrip('/')}/{folder}/{page.id}/"

    def guide(self, path: str) -> str:
        """Return the address of a documentation page such as ``docs/alerts.md#stallwatchrunfailed``."""
        name, _, anchor = path.removeprefix("docs/").partition("#")
        return f"{self.docs_url.rstrip('/')}/{name.removesuffix('.md')}/#{anchor}" if self.docs_url else ""


NOWHERE = Runbooks()  #: used if neither a dashboard nor a documentation site is configured


def command_for(page: RulePage) -> str:
    """Return the command that shows a rule's page in a terminal."""
    return f"stallwatch rules show {page.id}"


def link_lines(runbook: str, run: str, dashboard_url: str, language: str) -> str:
    """Return text that has a line for each link, or "" if there are no links.

    Each line has a label and an address or a command.
    """
    lines = [say("alerts.rule-link", language, url=runbook)] if runbook else []
    if dashboard_url and run:
        address = f"{dashboard_url.rstrip('/')}/run?run={quote(run, safe='')}"
        lines.append(say("alerts.page-link", language, url=address))
    return "\n".join(lines)


def with_links(text: str, lines: str, limit: int = TEXT_LIMIT) -> str:
    """Return the text followed by the links. If the result is too long, truncate only the text."""
    return f"{clipped(text, limit - len(lines) - 2)}\n\n{lines}" if lines else clipped(text, limit)


_LINK = lazy(r"!?\[([^\]]*)\]\([^)]*\)|<https?://[^>\s]*>")
_BARE_LINK = lazy(r"\s*\(?https?://[^\s)]+\)?")
_CODE = lazy(r"(`[^`]*`)")
_EMPHASIS = lazy(r"(\*\*|(?<!\w)\*)(?=\S)(.+?)(?<=\S)\1")
_SENTENCE_END = lazy(r"[.!?](?=\s)|[。！？]")
_OPEN_END = (":", "：")  # a colon introduces a list or code, which `plain` omits


def plain(markdown: str, limit: int) -> str:
    """Return the first paragraph of Markdown as plain text, in at most `limit` characters.

    Markup and the addresses of links are removed. Addresses in commands remain.
    """
    text = " ".join(markdown.strip().split("\n\n")[0].split())
    text = _LINK.sub(lambda found: found[1] or "", text)
    text = "".join(
        part[1:-1] if part.startswith("`") else _EMPHASIS.sub(r"\2", _BARE_LINK.sub("", part))
        for part in _CODE.split(text)
    )
    if len(text) <= limit and not text.endswith(_OPEN_END):
        return text
    ends = [found.end() for found in _SENTENCE_END.finditer(text, 0, limit)]
    # Keep whole sentences, unless less than a third of the allowed text would remain.
    if ends and ends[-1] >= min(limit, len(text)) // 3:
        return text[: ends[-1]]
    return clipped(text, limit) if len(text) > limit else text[:-1].rstrip() + "…"
