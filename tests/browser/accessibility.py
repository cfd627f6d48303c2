"""What axe-core finds on a page that keeps people from using it."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

WORST = ("serious", "critical")


def faults(page: Page) -> list[str]:
    """The serious ones in the page and the frames in it; Streamlit's own widgets are not let off."""
    for frame in page.frames:
        frame.evaluate(AXE_SCRIPT)
    told: dict[str, Any] = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    found = []
    for violation in told["violations"]:
        for node in violation["nodes"]:
            # In a frame or a shadow tree, a selector is a list of selectors.
            where = " ".join(map(str, node["target"]))
            if violation["impact"] in WORST:
                found.append(f"{violation['id']}: {where}: {node['html'][:300]}: {node['failureSummary']}")
    return found
