"""The post-mortem page under Streamlit: uploads, their summary, and stored reports."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit.testing.v1")
from drivenpages import HOSTILE, page, texts
from streamlit.testing.v1 import AppTest

from stallwatch_dashboard.settings import DashboardSettings
from stallwatch_dashboard.uploads.reports import Reports
from stallwatch_rules.records import Diagnosis, NewLines, Place

pytestmark = pytest.mark.usefixtures("page_settings")


def upload(app: AppTest, *files: tuple[str, bytes]) -> AppTest:
    return app.get("file_uploader")[0].set_value([(name, data, "text/plain") for name, data in files]).run()


def recorded(root: Path) -> list[tuple[str, bytes]]:
    folder = root / "tests" / "recordings" / "zero3-stall" / "ranks"
    return [(path.name, path.read_bytes()) for path in sorted(folder.glob("*.log"))]


def test_uploaded_logs_are_diagnosed_and_bad_files_reported(root: Path) -> None:
    app = upload(page("postmortem"), *recorded(root), ("junk.bin", bytes(range(256)) * 20))
    assert not app.exception
    output = texts(app, "markdown")
    assert "Failed" in output and "ZeRO" in output and "What to change" in output
    assert "junk" in texts(app, "warning")
    assert "zero3-trace-cache-invalidated" in list(app.dataframe[0].value["Rule"])
    assert "▶" in texts(app, "code")
    assert len(app.get("download_button")) == 3
    (board,) = app.get("component_instance")
    assert [chart["key"] for chart in json.loads(board.proto.json_args)["charts"]] == ["loss", "step_seconds"]


def test_fixes_are_shown_in_full() -> None:
    losses = [2.0] * 60 + [float("nan")] * 5
    log = "".join(f"step {step}/200 loss {loss}\n" for step, loss in enumerate(losses, 1))
    app = upload(page("postmortem"), ("a.log", log.encode()))
    lists = [item.value for item in app.markdown if item.value.startswith("1. ")]
    assert lists and all("since step 61\\. Resume from the last checkpoint" in fixes for fixes in lists)


def test_unknown_traceback_is_shown_as_text() -> None:
    frames = '  File "train.py", line 3, in <module>\n    f()\n'
    log = f"Traceback (most recent call last):\n{frames}OddError: {HOSTILE}\n"
    app = upload(page("postmortem"), ("a.log", log.encode()))
    assert not app.exception
    assert HOSTILE in texts(app, "code")
    assert all("<script>" not in str(element.value).replace("\\<", "") for element in app.markdown)
    # there is no summary to show
    assert "×" not in texts(app, "caption") and "Ranks  " not in texts(app, "caption")


def test_upload_without_readable_files_is_reported() -> None:
    app = upload(page("postmortem"), ("empty.log", b""), ("broken.gz", b"\x1f\x8b\x08\x00" + b"x" * 50))
    assert not app.exception
    warned = texts(app, "warning")
    assert "empty" in warned and "broken" in warned


def test_unchanged_uploads_are_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stallwatch_dashboard.uploads import reading

    reads: list[Any] = []
    real = reading.read_uploads
    monkeypatch.setattr(reading, "read_uploads", lambda *a, **k: reads.append(1) or real(*a, **k))
    app = upload(page("postmortem"), *recorded(root))
    app.run()
    assert len(reads) == 1


def test_upload_can_be_one_archive(root: Path) -> None:
    import zipfile

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in recorded(root):
            archive.writestr(f"logs/{name}", data)
    app = upload(page("postmortem"), ("logs.zip", packed.getvalue()))
    assert not app.exception and "ZeRO" in texts(app, "markdown") and "▶" in texts(app, "code")


def test_report_can_be_kept_opened_and_deleted(root: Path) -> None:
    app = upload(page("postmortem"), *recorded(root))
    app.button(key="keep_report").click().run()
    assert not app.exception
    kept = app.query_params["report"]
    wanted = kept[0] if isinstance(kept, list) else kept
    app = page("postmortem", report=wanted)
    assert not app.exception and "Failed" in texts(app, "markdown")
    assert len(app.get("download_button")) == 3 and "rank0" in texts(app, "caption")
    app = page("postmortem")
    app.button(key=f"delete-{wanted}").click().run()
    assert not app.exception
    assert "deleted" in texts(page("postmortem", report=wanted), "info")


def test_comparison_and_differing_endings_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from stallwatch_dashboard.uploads import reading

    place = Place(0, "rank0.log", 31, None, 30, "")
    line = "WARNING: the belt of conveyor 7 slips"
    new = [NewLines(line, line, "warning", 1, [0], place, place)]

    def read(*_: Any, healthy: Sequence[object] = (), **__: Any) -> reading.Answer:
        found = Diagnosis("failed", new_lines=[] if healthy else new, digest=["rank 0: a", "rank 1: b"])
        return reading.Answer(found, [], "", "failed" if healthy else "")

    monkeypatch.setattr(reading, "read_uploads", read)
    app = upload(page("postmortem"), ("failed.log", b"x"))
    assert not app.exception and "itself not healthy" not in texts(app, "info")
    assert "rank 0: a\nrank 1: b" in texts(app, "text")
    assert "conveyor 7" in texts(app, "code") and "warning · rank 0" in texts(app, "caption")
    app.get("file_uploader")[1].set_value([("other.log", b"y", "text/plain")]).run()
    assert not app.exception and "conveyor 7" not in texts(app, "code")
    assert "itself not healthy" in texts(app, "info") and "no new line" in texts(app, "caption")


def test_older_reports_are_folded(page_settings: DashboardSettings) -> None:
    reports = Reports(page_settings.home)
    for _ in range(22):
        reports.keep(Diagnosis("healthy"), ["a.log"], "en")
    app = page("postmortem")
    opened = [button.key for button in app.button if (button.key or "").startswith("open-")]
    assert len(opened) == 20
    app.toggle(key="more_reports").set_value(True).run()
    assert not app.exception
    assert len([button for button in app.button if (button.key or "").startswith("open-")]) == 22
