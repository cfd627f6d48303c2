"""Logs dropped on the page, and the resulting report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")
from stage import RECORDING

HOSTILE = "<script>alert('pm')</script><img src=x onerror=alert('img')> **bold** [x](javascript:alert(1))"


@pytest.fixture
def page(scene, watched):  # type: ignore[no-untyped-def]
    opened(watched, scene.urls["embedded"])
    return watched.page


def opened(watched, url: str) -> None:  # type: ignore[no-untyped-def]
    watched.page.goto(f"{url}/postmortem")
    watched.page.get_by_test_id("stFileUploaderDropzone").wait_for()


def test_upload_leads_to_a_verdict_and_downloads(page, watched, browser, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    junk = tmp_path / "junk.bin"
    junk.write_bytes(bytes(range(256)) * 100)
    page.locator("input[type=file]").set_input_files([*sorted((RECORDING / "ranks").glob("*.log")), junk])
    page.get_by_role("heading", name="Failed").wait_for()
    page.get_by_text("What to change").wait_for()
    page.get_by_text("junk.bin: ").wait_for()
    with page.expect_download() as downloaded:
        page.get_by_role("button", name="Download JSON").click()
    report = json.loads(downloaded.value.path().read_bytes())
    assert report["verdict"] == "failed" and report["primary"]["rule"] == "zero3-trace-cache-invalidated"
    with page.expect_download() as downloaded:
        page.get_by_role("button", name="Download Markdown").click()
    assert downloaded.value.suggested_filename == "stallwatch-report.md"
    assert "zero3-trace-cache-invalidated" in downloaded.value.path().read_text()
    with page.expect_download() as downloaded:
        page.get_by_role("button", name="Download HTML").click()
    assert downloaded.value.suggested_filename == "stallwatch-report.html"
    whole = tmp_path / "report.html"
    downloaded.value.save_as(whole)
    _reads_without_network(browser, whole)
    assert watched.failures == []


def _reads_without_network(browser, file: Path) -> None:  # type: ignore[no-untyped-def]
    """Check that the file is complete: it fetches nothing, runs nothing, and has the page's content."""
    context = browser.new_context(offline=True)
    try:
        page, asked, failures = context.new_page(), [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.goto(file.as_uri())
        page.get_by_text("zero3-trace-cache-invalidated").first.wait_for()
        page.get_by_text("What to change").first.wait_for()
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == [] and failures == []
    finally:
        context.close()


def test_progress_of_reading_is_shown(page, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    log = tmp_path / "rank0.log"
    # Every line is relevant, so that reading takes a moment.
    log.write_text("".join(f"step {n} loss {3 / n:.6f} RuntimeError: odd {n}\n" for n in range(1, 300_000)))
    page.evaluate(
        """() => {
            window.told = new Set();
            const look = () => {
                const found = document.body.innerText.match(/Reading [\\d.]+ \\w+ of [\\d.]+ \\w+/g);
                for (const one of found || []) window.told.add(one);
            };
            new MutationObserver(look).observe(document.body,
                {subtree: true, childList: true, characterData: true});
        }"""
    )
    page.locator("input[type=file]").set_input_files(log)
    page.locator("[class*=st-key-verdict]").wait_for(timeout=120_000)
    found = page.evaluate("() => [...window.told]")
    assert len([item for item in found if not item.startswith("Reading 0 ")]) >= 1, found


def test_kept_report_can_be_linked_to_and_deleted(scene, page) -> None:  # type: ignore[no-untyped-def]
    page.locator("input[type=file]").set_input_files(sorted((RECORDING / "ranks").glob("*.log")))
    page.get_by_role("heading", name="Failed").wait_for()
    page.get_by_role("button", name="Keep this report").click()
    page.wait_for_url(re.compile("report="))
    page.goto(page.url)  # another user who got the link
    page.get_by_role("heading", name="Failed").wait_for()
    page.get_by_role("button", name="All reports").click()
    page.get_by_role("button", name="Open", exact=True).click()
    page.get_by_role("heading", name="Failed").wait_for()
    page.get_by_role("button", name="All reports").click()
    assert len(list((scene.home / "reports").iterdir())) == 1
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete").wait_for(state="detached")
    assert list((scene.home / "reports").iterdir()) == []


def test_hostile_log_text_stays_text(page, watched, scene, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    log = tmp_path / "rank0<b>.log"
    traceback = '  File "train.py", line 3, in <module>\n    f()\n'
    log.write_text(
        f"{HOSTILE}\nstep 1 loss 2.0\nTraceback (most recent call last):\n{traceback}OddError: {HOSTILE}\n"
    )
    page.locator("input[type=file]").set_input_files(log)
    page.get_by_text("Failed, cause uncertain").wait_for()
    page.get_by_text("OddError: <script>").first.wait_for()
    assert watched.dialogs == []
    assert page.locator("img[src='x']").count() == 0
    assert watched.outside(scene.urls["embedded"]) == set()
