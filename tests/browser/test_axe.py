"""Accessibility of all pages by axe-core's rules, in both color schemes; each page fits a telephone."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")
pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
from accessibility import faults
from stage import RECORDING, board, choose_row


def on_runs(page, url: str) -> None:  # type: ignore[no-untyped-def]
    page.goto(url)
    page.get_by_text("To open a").wait_for()


def on_run(page, url: str) -> None:  # type: ignore[no-untyped-def]
    page.goto(f"{url}/run?run=hangs-one")
    page.get_by_role("heading", name="Stalled").wait_for()
    board(page)
    page.get_by_text("Log of all ranks around").click()
    page.get_by_text("Search these lines").wait_for()


def on_incidents(page, url: str) -> None:  # type: ignore[no-untyped-def]
    page.goto(f"{url}/incidents")
    page.get_by_text("To open a").wait_for()


def on_incident(page, url: str) -> None:  # type: ignore[no-untyped-def]
    on_incidents(page, url)
    choose_row(page, re.compile("incident="))
    page.get_by_text("Timeline").wait_for()


def on_postmortem(page, url: str) -> None:  # type: ignore[no-untyped-def]
    page.goto(f"{url}/postmortem")
    page.locator("input[type=file]").set_input_files(sorted((RECORDING / "ranks").glob("*.log")))
    page.get_by_role("heading", name="Failed").wait_for()
    page.get_by_role("button", name="Download JSON").wait_for()


def on_rules(page, url: str) -> None:  # type: ignore[no-untyped-def]
    page.goto(f"{url}/rules?rule=cuda-oom")
    page.locator(".st-key-rule-page").get_by_text("What happened").wait_for()


def on_health(page, url: str) -> None:  # type: ignore[no-untyped-def]
    page.goto(f"{url}/health")
    page.get_by_text("duckdb").first.wait_for()


PAGES = (on_runs, on_run, on_incidents, on_incident, on_postmortem, on_rules, on_health)


@pytest.mark.parametrize("go", PAGES, ids=lambda go: re.sub("^on_", "", go.__name__))
def test_pages_have_no_serious_accessibility_fault(scene, watched, go: Callable[..., None]) -> None:  # type: ignore[no-untyped-def]
    page = watched.page
    found = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        go(page, scene.urls["embedded"])
        # The page applies a color scheme after a delay.
        page.wait_for_function(
            """dark => {
                const [r, g, b] = getComputedStyle(document.querySelector('.stApp')).backgroundColor
                    .match(/\\d+/g).map(Number);
                return (r + g + b < 384) === dark;
            }""",
            arg=scheme == "dark",
        )
        found[scheme] = faults(page)
    assert found == {"light": [], "dark": []}
    # WCAG 2.2, 1.4.10: a page of this width needs no horizontal scrolling (tables and logs scroll inside).
    page.set_viewport_size({"width": 320, "height": 800})
    page.wait_for_function(
        """() => {
            const main = document.querySelector('[data-testid=stMain]');
            return main.clientWidth <= 320 && main.scrollWidth <= main.clientWidth;
        }"""
    )
