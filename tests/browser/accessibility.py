"""Accessibility faults of a page that axe-core finds and that keep people from using it."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

WORST = ("serious", "critical")
#: Rules and elements that belong to Streamlit alone. Its code block scrolls in an element without tabindex
#: (1.67); the keyboard of current browsers reaches any scrolling element.
THEIRS = (("scrollable-region-focusable", ".stCode"),)
_LOOKS, _BETWEEN = 8, 500  # number of checks of a page, and milliseconds between them


def faults(page: Page) -> list[str]:
    """Return the serious faults of the page and its permanent frames.

    While a page is redrawn, Streamlit fades the parts that it replaces, which are too pale for a moment.
    """
    for _ in range(_LOOKS):
        if not (found := _faults_now(page)):
            break
        page.wait_for_timeout(_BETWEEN)
    return found


def _faults_now(page: Page) -> list[str]:
    for frame in page.frames:
        frame.evaluate(AXE_SCRIPT)
    messages: dict[str, Any] = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    found = []
    for violation in messages["violations"]:
        for node in violation["nodes"]:
            # In a frame or a shadow tree, a selector is a list of selectors.
            where = " ".join(map(str, node["target"]))
            theirs = any(violation["id"] == rule and place in where for rule, place in THEIRS)
            if violation["impact"] in WORST and not theirs:
                found.append(f"{violation['id']}: {where}: {node['html'][:300]}: {node['failureSummary']}")
    return found
