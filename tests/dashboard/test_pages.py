"""Every page as Streamlit runs it: empty, with data, and with text that wants to be more than text."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallwatch_alerts.store import IncidentStore
from stallwatch_dashboard.settings import DashboardSettings
from stallwatch_dashboard.sources.embedded import shared
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.metrics import RunMetrics
from stallwatch_exporter.runfolder import RunFolder

pytest.importorskip("streamlit.testing.v1")
from streamlit.testing.v1 import AppTest

pytestmark = pytest.mark.usefixtures("page_settings")

HOSTILE = "<script>alert(1)</script> **bold** [x](javascript:alert(1)) $x$ :red[y]"


def page(name: str, **query: str) -> AppTest:
    app = AppTest.from_string(
        f"from stallwatch_dashboard.app import main\nmain({name!r})", default_timeout=60
    )
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def texts(app: AppTest, *kinds: str) -> str:
    return "\n".join(str(element.value) for kind in kinds for element in app.get(kind))


@pytest.fixture
def stuck(
    home: Path,
    make_run: Callable[..., RunFolder],
    make_incident: Callable[..., Incident],
    serve_metrics: Callable[..., str],
) -> RunFolder:
    """A run under way that stalled, with hostile words wherever a log could put them."""
    now = time.time()
    metrics = RunMetrics("stuck")
    metrics.progress(57, 900)
    metrics.stepped(0, now - 40)
    metrics.thresholds({"train": 30.0})
    metrics.step_took(2.0, 3)
    folder = make_run(
        "stuck", now=now, state="stalled", endpoint=serve_metrics(metrics), lines={0: [HOSTILE]}
    )
    incident = make_incident(opened_at=now - 10, updated_at=now, evidence=[HOSTILE], note=HOSTILE)
    store = IncidentStore.at_home(home)
    store.upsert(incident)
    store.close()
    shared().scraper.scrape_once()
    return folder


def test_without_runs_each_page_says_what_to_do() -> None:
    runs = page("runs")
    assert not runs.exception
    assert "No runs yet" in texts(runs, "markdown")
    assert "stallwatch run -- torchrun" in texts(runs, "code")
    run = page("run")
    assert not run.exception and "stallwatch run -- torchrun" in texts(run, "code")
    post = page("postmortem")
    assert not post.exception and "stallwatch diagnose" in texts(post, "code")


def test_the_runs_page_has_a_row_a_run(stuck: RunFolder, make_run: Callable[..., RunFolder]) -> None:
    make_run("done", now=time.time(), state="finished", ended_at=time.time())
    app = page("runs")
    assert not app.exception
    table = app.dataframe[0].value
    assert list(table["Run"]) == ["stuck", "done"]
    assert list(table["State"]) == ["■ stalled", "✔ finished"]
    assert table["Step"][0] == "57 / 900"
    assert table["Incident"][0] == "silent-hang-no-error"


def test_the_run_page_starts_with_the_verdict(stuck: RunFolder) -> None:
    app = page("run", run="stuck")
    assert not app.exception
    headings = texts(app, "markdown")
    assert "Stalled" in headings and "What to change" in headings
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures["Step"] == "57 / 900" and figures["Step time"] == "2.00 s"
    (board,) = app.get("component_instance")
    charts = json.loads(board.proto.json_args)["charts"]
    assert charts[0]["title"] == "Trace-cache invalidations against progress"
    assert app.query_params["run"] in ("stuck", ["stuck"])


def test_log_text_is_shown_as_text(stuck: RunFolder) -> None:
    app = page("run", run="stuck")
    assert HOSTILE in texts(app, "code")
    for element in app.markdown:
        assert "<script>" not in str(element.value).replace("\\<", "")
        assert not element.allow_html
    assert all("alert" not in str(element.value) for element in app.get("html"))


def test_a_run_that_is_not_there_yet_is_waited_for(make_run: Callable[..., RunFolder]) -> None:
    make_run("other", now=time.time())
    app = page("run", run="soon")
    assert not app.exception and not app.metric
    assert "soon" in texts(app, "text") and "soon" not in texts(app, "markdown")
    make_run("soon", now=time.time())
    app.run()
    assert not app.exception and app.metric
    assert app.selectbox(key="chosen_run").value == "soon"


def test_another_run_can_be_chosen(stuck: RunFolder, make_run: Callable[..., RunFolder]) -> None:
    make_run("other", now=time.time())
    app = page("run", run="stuck")
    app.selectbox(key="chosen_run").select("other").run()
    assert not app.exception
    assert app.query_params["run"] in ("other", ["other"])
    app.query_params["run"] = "stuck"  # the browser's back button
    app.run()
    assert app.selectbox(key="chosen_run").value == "stuck"


def test_without_a_name_in_the_address_the_newest_run_is_shown(make_run: Callable[..., RunFolder]) -> None:
    make_run("first", now=time.time() - 50)
    make_run("second", now=time.time())
    assert page("run").selectbox(key="chosen_run").value == "second"


def test_chinese(stuck: RunFolder) -> None:
    app = page("run", run="stuck", lang="zh")
    assert not app.exception and "停滞" in texts(app, "markdown")
    assert "■ 停滞" in list(page("runs", lang="zh").dataframe[0].value["状态"])


def upload(app: AppTest, *files: tuple[str, bytes]) -> AppTest:
    return app.get("file_uploader")[0].set_value([(name, data, "text/plain") for name, data in files]).run()


def recorded(root: Path) -> list[tuple[str, bytes]]:
    folder = root / "tests" / "recordings" / "zero3-stall" / "ranks"
    return [(path.name, path.read_bytes()) for path in sorted(folder.glob("*.log"))]


def test_uploaded_logs_are_diagnosed_and_a_bad_file_is_named(root: Path) -> None:
    app = upload(page("postmortem"), *recorded(root), ("junk.bin", bytes(range(256)) * 20))
    assert not app.exception
    told = texts(app, "markdown")
    assert "Failed" in told and "ZeRO" in told and "What to change" in told
    assert "junk" in texts(app, "warning")
    assert "zero3-trace-cache-invalidated" in list(app.dataframe[0].value["Rule"])
    assert "▶" in texts(app, "code")
    assert len(app.get("download_button")) == 2


def test_a_traceback_that_no_rule_knows_is_shown_as_text() -> None:
    frames = '  File "train.py", line 3, in <module>\n    f()\n'
    log = f"Traceback (most recent call last):\n{frames}OddError: {HOSTILE}\n"
    app = upload(page("postmortem"), ("a.log", log.encode()))
    assert not app.exception
    assert HOSTILE in texts(app, "code")
    assert all("<script>" not in str(element.value).replace("\\<", "") for element in app.markdown)


def test_only_bad_files_leave_a_page_that_says_so() -> None:
    app = upload(page("postmortem"), ("empty.log", b""), ("broken.gz", b"\x1f\x8b\x08\x00" + b"x" * 50))
    assert not app.exception
    warned = texts(app, "warning")
    assert "empty" in warned and "broken" in warned


def test_the_same_files_are_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import stallwatch_exporter.postmortem as postmortem

    reads: list[Any] = []
    real = postmortem.diagnose_streams
    monkeypatch.setattr(postmortem, "diagnose_streams", lambda *a, **k: reads.append(1) or real(*a, **k))
    app = upload(page("postmortem"), *recorded(root))
    app.run()
    assert len(reads) == 1


def test_a_store_held_by_another_dashboard_is_told_on_every_page(page_settings: DashboardSettings) -> None:
    shared().store.problem = "Another dashboard holds the file."
    for name in ("runs", "run", "postmortem"):
        assert "Another dashboard" in texts(page(name), "warning").replace("\\", "")


def test_the_whole_upload_may_be_one_archive(root: Path) -> None:
    import zipfile

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in recorded(root):
            archive.writestr(f"logs/{name}", data)
    app = upload(page("postmortem"), ("logs.zip", packed.getvalue()))
    assert not app.exception and "ZeRO" in texts(app, "markdown") and "▶" in texts(app, "code")
