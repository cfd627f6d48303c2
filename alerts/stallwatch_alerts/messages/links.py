"""The addresses under a message: the rule's page, the run's page. Ours alone: none ever comes from a log."""

from __future__ import annotations

from urllib.parse import quote

from stallwatch_alerts.messages.layout import clipped
from stallwatch_rules.locale import say

TEXT_LIMIT = 2000  #: of a whole message; without links and groups it is shorter


def link_lines(runbook: str, run: str, dashboard_url: str, language: str) -> str:
    """Return a label and an address per line; empty if there is nothing to link to."""
    lines = [say("alerts.rule-link", language, url=runbook)] if runbook else []
    if dashboard_url and run:
        address = f"{dashboard_url.rstrip('/')}/run?run={quote(run, safe='')}"
        lines.append(say("alerts.page-link", language, url=address))
    return "\n".join(lines)


def with_links(text: str, lines: str, limit: int = TEXT_LIMIT) -> str:
    """The text with links under it; what is too long is cut above them."""
    return f"{clipped(text, limit - len(lines) - 2)}\n\n{lines}" if lines else clipped(text, limit)
