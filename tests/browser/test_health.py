"""The Health page: sources, losses, and a test message that really arrives."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")
from scene import SOURCES


@pytest.mark.parametrize("source", SOURCES)
def test_test_message_reaches_the_chat(scene, watched, source: str) -> None:  # type: ignore[no-untyped-def]
    page = watched.page
    before = len(scene.chat.messages)
    page.goto(f"{scene.urls[source]}/health")
    page.get_by_role("button", name="Send a test message").click()
    page.get_by_test_id("stAlert").wait_for()
    assert len(scene.chat.messages) == before + 1
    assert "s3cr3t" not in page.content()
    page.get_by_text("No agent has lost records").wait_for()
    page.get_by_text("duckdb").first.wait_for()
    if source == "embedded":
        page.get_by_role("gridcell", include_hidden=True, name="steady").first.wait_for(state="attached")
    else:
        page.get_by_text("The metrics come from a Prometheus").wait_for()
    assert watched.failures == [] and watched.outside(scene.urls[source]) == set()
