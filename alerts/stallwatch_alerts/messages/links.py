"""The addresses under a message: the rule's page, the run's page. Ours alone: none ever comes from a log."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from stallwatch_alerts.messages.languages import words_of
from stallwatch_alerts.messages.layout import clipped
from stallwatch_alerts.prometheus.links import runbook_of

if TYPE_CHECKING:
    from stallwatch_rules.pages.page import RulePage

TEXT_LIMIT = 2000  #: of a whole message; without links and groups it is shorter


def link_lines(page: RulePage | None, run: str, dashboard_url: str, language: str) -> str:
    """A label and an address per line; empty where there is nothing to link to."""
    words, lines = words_of(language), []
    if page is not None:
        lines.append(f"{words.rule_link}{runbook_of(page)}")
    if dashboard_url and run:
        address = f"{dashboard_url.rstrip('/')}/run?run={quote(run, safe='')}"
        lines.append(f"{words.page_link}{address}")
    return "\n".join(lines)


def with_links(text: str, lines: str, limit: int = TEXT_LIMIT) -> str:
    """The text with links under it; what is too long is cut above them."""
    return f"{clipped(text, limit - len(lines) - 2)}\n\n{lines}" if lines else clipped(text, limit)
