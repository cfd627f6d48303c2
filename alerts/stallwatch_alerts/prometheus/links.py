"""Where the page of a rule can be read: the runbook that alerts and messages link to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stallwatch_rules.pages.page import RulePage

BLOB = "https://github.com/stallwatch/stallwatch/blob/main"
DOCS = f"{BLOB}/docs/alerts.md"


def runbook_of(page: RulePage) -> str:
    """The address of a packaged rule's page; that of the documentation for a page of one's own."""
    path = Path(page.path)
    if "stallwatch_rules" in path.parts[-5:-3]:  # of the catalogue, or of a pack
        inside = path.parts[len(path.parts) - path.parts[::-1].index("stallwatch_rules") :]
        return "/".join((BLOB, "rules/stallwatch_rules", *inside))
    return f"{BLOB}/docs/rules.md"
