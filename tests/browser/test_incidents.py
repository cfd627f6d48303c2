"""Incidents in the browser: find them in the table, read, acknowledge, silence and annotate them."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")
from playwright.sync_api import expect
from scene import HANGING
from stage import choose_row


def test_incident_is_found_acknowledged_and_silenced(scene, watched) -> None:  # type: ignore[no-untyped-def]
    page, run = watched.page, HANGING["embedded"]
    page.goto(f"{scene.urls['embedded']}/run?run={run}")
    page.get_by_role("heading", name="Stalled").wait_for()
    page.get_by_test_id("stTopNav").get_by_role("link", name="Incidents").click()
    page.get_by_text("To open an incident, select its row: click the row's checkbox").wait_for()
    page.get_by_role("button", name="critical").click()
    page.wait_for_url("**show=critical*")
    choose_row(page, re.compile("incident="), search=f"{run} trace-cache")
    page.get_by_role("heading", name=re.compile(f"{run}: open")).wait_for()
    page.get_by_text("What to change").wait_for()

    page.get_by_label("Your name").fill("Ada")
    page.get_by_label("Your name").press("Tab")
    page.get_by_role("button", name="Acknowledge").click()
    page.get_by_text("This incident is acknowledged").wait_for()
    page.get_by_role("button", name="Silence", exact=True).click()
    page.get_by_text("Silenced until").wait_for()
    page.get_by_role("button", name="End the silence").click()
    page.get_by_role("button", name="Silence", exact=True).wait_for()
    note = "<img src=x onerror=alert('note')> restarted with **zero.Init**"
    page.get_by_label("Note", exact=True).fill(note)
    page.get_by_role("button", name="Add the note").click()
    timeline = page.get_by_test_id("stDataFrame").first
    timeline.get_by_role("gridcell", include_hidden=True, name=note).wait_for(state="attached")
    expect(timeline.get_by_role("gridcell", include_hidden=True, name="Ada").nth(1)).to_be_attached()
    expect(timeline.get_by_role("gridcell", include_hidden=True, name="acknowledged")).to_have_count(1)
    assert watched.dialogs == [] and watched.failures == []

    address = page.url
    page.get_by_role("link", name="View run").click()
    page.wait_for_url(f"**/run?run={run}")
    page.get_by_role("heading", name="Stalled").wait_for()
    page.goto(address)  # the link can be shared
    page.get_by_role("button", name="All incidents").click()
    page.get_by_text("To open an incident, select its row").wait_for()


def test_row_selected_by_keyboard_opens(scene, watched) -> None:  # type: ignore[no-untyped-def]
    page = watched.page
    messages: list[bytes] = []

    def sent(payload: str | bytes) -> None:
        if isinstance(payload, bytes) and re.search(rb'"rows":\[\d+\]', payload):
            messages.append(payload)

    page.on("websocket", lambda socket: socket.on("framesent", sent))
    page.goto(f"{scene.urls['embedded']}/incidents?q={HANGING['embedded']}")
    page.get_by_text("To open an incident, select its row").wait_for()
    for _ in range(10):  # a key press is lost while the table is built, so press again
        page.get_by_test_id("data-grid-canvas").first.focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Shift+Space")
        for _ in range(40):
            if messages:
                break
            page.wait_for_timeout(250)
        if messages:
            break
    page.wait_for_url(re.compile("incident="))
