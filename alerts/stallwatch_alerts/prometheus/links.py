"""Where the page of a rule can be read: the runbook that alerts and messages link to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stallwatch_rules.pages.page import RulePage

BLOB = "https://github.com/stallwatch/stallwatch/blob/main"
_CATALOGUE = "rules/stallwatch_rules/catalogue"
DOCS = f"{BLOB}/docs/alerts.md"


def runbook_of(page: RulePage) -> str:
    """The address of a packaged rule's page; that of the documentation for a page of one's own."""
    path = Path(page.path)
    if path.parts[-4:-2] == ("stallwatch_rules", "catalogue"):
        return f"{BLOB}/{_CATALOGUE}/{page.family}/{page.id}.md"
    return f"{BLOB}/docs/rules.md"
