"""Logs dropped on the page, and the report that comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")
from stage import RECORDING

HOSTILE = "<script>alert('pm')</script><img src=x onerror=alert('img')> **bold** [x](javascript:alert(1))"


@pytest.fixture
def page(stage, watched):  # type: ignore[no-untyped-def]
    stage.dashboard()
    watched.page.goto(f"{stage.url}/postmortem")
    watched.page.get_by_test_id("stFileUploaderDropzone").wait_for()
    return watched.page


def test_upload_verdict_and_downloads(page, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    junk = tmp_path / "junk.bin"
    junk.write_bytes(bytes(range(256)) * 100)
    page.locator("input[type=file]").set_input_files([*sorted((RECORDING / "ranks").glob("*.log")), junk])
    page.get_by_role("heading", name="Failed").wait_for()
    page.get_by_text("What to change").wait_for()
    page.get_by_text("junk.bin: ").wait_for()
    with page.expect_download() as told:
        page.get_by_role("button", name="Download JSON").click()
    report = json.loads(told.value.path().read_bytes())
    assert report["verdict"] == "failed" and report["primary"]["rule"] == "zero3-trace-cache-invalidated"
    with page.expect_download() as told:
        page.get_by_role("button", name="Download Markdown").click()
    assert told.value.suggested_filename == "stallwatch-report.md"
    assert "zero3-trace-cache-invalidated" in told.value.path().read_text()


def test_hostile_log_text_stays_text(page, watched, stage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    log = tmp_path / "rank0<b>.log"
    traceback = '  File "train.py", line 3, in <module>\n    f()\n'
    log.write_text(
        f"{HOSTILE}\nstep 1 loss 2.0\nTraceback (most recent call last):\n{traceback}OddError: {HOSTILE}\n"
    )
    page.locator("input[type=file]").set_input_files(log)
    page.get_by_text("Failed of something no rule knows").wait_for()
    page.get_by_text("OddError: <script>").first.wait_for()
    assert watched.dialogs == []
    assert page.locator("img[src='x']").count() == 0
    assert watched.outside(stage.url) == set()
