"""The catalogue in the browser: search, read, test a pattern, draft a page."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")
from stage import choose_row

FAILURE = """step 12 loss 1.0
Traceback (most recent call last):
  File "/app/train.py", line 3, in <module>
    step()
  File "/opt/lib/odd/engine.py", line 8, in step
    raise OddEngineError(f"bucket {n} of the odd engine is empty")
odd.engine.OddEngineError: bucket 17 of the odd engine is empty
"""


def test_error_message_finds_its_rule(scene, watched) -> None:  # type: ignore[no-untyped-def]
    page = watched.page
    page.goto(f"{scene.urls['embedded']}/rules")
    search = page.get_by_label("Search, or paste an error message")
    search.fill("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    search.press("Enter")
    page.wait_for_url("**q=torch.OutOf*")
    choose_row(page, "**rule=cuda-*")
    page.locator(".st-key-rule-page").get_by_text("What happened").wait_for()
    page.get_by_text("How it is recognized").click()
    page.get_by_text("Fires on").wait_for()
    address = page.url
    page.goto(address)  # the link can be shared
    page.locator(".st-key-rule-page").get_by_text("What happened").wait_for()
    assert watched.failures == [] and watched.outside(scene.urls["embedded"]) == set()


def test_pattern_is_tested_and_a_page_drafted(scene, watched) -> None:  # type: ignore[no-untyped-def]
    page = watched.page
    page.goto(f"{scene.urls['prometheus']}/rules")
    page.get_by_role("tab", name="Try a pattern").click()
    pattern, lines = page.get_by_label("Pattern (google-re2"), page.get_by_label("Lines to test")
    pattern.fill(r"loss scale is (?P<scale>\d+)")
    pattern.press("Tab")
    lines.fill("the loss scale is 512\nnothing here\nthe loss scale is 64")
    lines.press("Control+Enter")
    page.get_by_text("2 of 3 lines match").wait_for()
    page.get_by_role("gridcell", include_hidden=True, name="512").first.wait_for(state="attached")
    pattern.fill(r"(a+)+\1")
    pattern.press("Enter")
    page.get_by_test_id("stAlert").wait_for()

    page.get_by_role("tab", name="Draft a page").click()
    failed = page.get_by_label("End of the log of a run with an unknown failure")
    failed.fill(FAILURE)
    failed.press("Control+Enter")
    page.get_by_text("run stallwatch rules check").wait_for()
    with page.expect_download() as found:
        page.get_by_role("button", name="Download the page").click()
    drafted = found.value.path().read_text()
    assert "OddEngineError" in drafted and found.value.suggested_filename.endswith(".md")
    assert watched.failures == []
