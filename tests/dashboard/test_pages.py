"""Every page under Streamlit: empty, with data, and with hostile text."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stallwatch_alerts.store import IncidentStore
from stallwatch_dashboard.data.metrics_page import Reading
from stallwatch_dashboard.data.source import close_shared, shared
from stallwatch_dashboard.settings import DashboardSettings, to_environment
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_rules.stacks.records import StackGroup, StallStacks

pytest.importorskip("streamlit.testing.v1")
from drivenpages import HOSTILE, page, runs_shown, texts
from streamlit.runtime.context import ContextProxy

pytestmark = pytest.mark.usefixtures("page_settings")


@pytest.fixture
def stuck(
    home: Path,
    make_run: Callable[..., RunFolder],
    make_incident: Callable[..., Incident],
    serve_metrics: Callable[..., str],
) -> RunFolder:
    """Return a stalled run with hostile text in all places that a log can fill."""
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
    until = time.monotonic() + 120  # one round waits for a second, and a busy machine takes longer
    while not any(target.run == "stuck" and target.answered for target in shared().targets()):
        assert time.monotonic() < until
        shared().scraper.scrape_once()
    return folder


def test_without_runs_each_page_shows_the_next_step() -> None:
    runs = page("runs")
    assert not runs.exception
    assert "No runs yet" in texts(runs, "markdown")
    assert "stallwatch run -- torchrun" in texts(runs, "code")
    run = page("run")
    assert not run.exception and "stallwatch run -- torchrun" in texts(run, "code")
    post = page("postmortem")
    assert not post.exception and "stallwatch diagnose" in texts(post, "code")


def test_runs_page_has_one_row_per_run(stuck: RunFolder, make_run: Callable[..., RunFolder]) -> None:
    make_run("done", now=time.time(), state="finished", ended_at=time.time())
    app = page("runs")
    assert not app.exception
    first, second = runs_shown(app)
    assert [first["Run"], second["Run"]] == ["stuck", "done"]
    assert [first["State"], second["State"]] == ["■ stalled", "✔ finished"]
    assert (first["Step"], first["of"], first["Incident"]) == (
        "57",
        "900",
        "No step finished within the expected time, and no error was reported",
    )


def test_run_page_starts_with_the_verdict(stuck: RunFolder) -> None:
    app = page("run", run="stuck")
    assert not app.exception
    headings = texts(app, "markdown")
    assert "Stalled" in headings and "What to change" in headings
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures["Step"] == "57 / 900" and figures["Step time"] == "2 s"
    assert "Invalidations" not in figures
    (board,) = app.get("component_instance")
    charts = json.loads(board.proto.json_args)["charts"]
    assert charts[0]["title"] == "Step time and stall threshold", "it counted no invalidations"
    assert app.query_params["run"] in ("stuck", ["stuck"])


def test_page_of_an_ended_run_shows_the_end_of_its_training(
    home: Path,
    make_run: Callable[..., RunFolder],
    make_incident: Callable[..., Incident],
) -> None:
    """The shutdown's last scrape is not shown; an unknown failure is described in words."""
    now = time.time()
    make_run("over", now=now, state="failed", ended_at=now)
    store = shared().store
    seen = ((now - 60, 7, 4 << 30, "train"), (now - 58, 8, 5 << 30, "train"), (now - 10, 8, 1 << 20, "save"))
    for at, step, memory, phase in seen:
        found = {
            "step": step,
            "memory_allocated_bytes": memory,
            "last_step_timestamp_seconds": min(at, now - 58),
        }
        readings = [Reading("over", f"stallwatch_{name}", 0, "", float(v)) for name, v in found.items()]
        label = json.dumps({"stallwatch_phase": phase})
        store.write([*readings, Reading("over", "stallwatch_phase", None, label, 1.0)], at)
    incidents = IncidentStore.at_home(home)
    incidents.upsert(make_incident(run="over", kind="ended", rule="unknown-failure", opened_at=now))
    incidents.close()
    app = page("run", run="over")
    assert not app.exception
    (figure,) = (metric for metric in app.metric if metric.label == "Memory")
    assert figure.value == "5.0 GiB"
    assert re.fullmatch(r"allocated, at (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d", figure.delta)
    assert "unknown-failure" not in texts(app, "markdown", "caption")
    assert "cause unknown" in texts(app, "markdown")
    assert [h.split()[0] for h in texts(app, "markdown").splitlines() if h.startswith("#")][:2] == [
        "##",
        "###",
    ]
    (shown,) = runs_shown(page("runs"))
    assert not {"Phase", "Memory"} & shown.keys()  # no run has any


def test_unread_metrics_are_reported_with_the_reason(
    make_run: Callable[..., RunFolder],
) -> None:
    """A dashboard on another host sees the run, but not a loopback address."""
    now = time.time()
    lines = {0: ["step 7/900 loss 0.5"]}
    make_run("far", now=now, host="n1", endpoint="http://127.0.0.1:1/metrics", lines=lines)
    until = time.monotonic() + 120
    while not any(target.error for target in shared().targets()):
        assert time.monotonic() < until
        shared().scraper.scrape_once()
    said = texts(page("run", run="far"), "caption")
    assert "metrics while the run was active" in said
    assert "the agent on n1 listens only on that host" in said


def test_log_text_is_shown_as_text(stuck: RunFolder) -> None:
    app = page("run", run="stuck")
    assert HOSTILE in texts(app, "code")
    for element in app.markdown:
        assert "<script>" not in str(element.value).replace("\\<", "")
        assert not element.allow_html
    assert all("alert" not in str(element.value) for element in app.get("html"))


def test_page_of_a_missing_run_waits_for_it(make_run: Callable[..., RunFolder]) -> None:
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


def test_page_of_an_old_attempt_links_to_the_newest(make_run: Callable[..., RunFolder]) -> None:
    now = time.time()
    make_run("sft", now=now - 60)
    make_run("sft-2", now=now)
    (link,) = page("run", run="sft").get("page_link")
    assert "sft" in link.proto.label and link.proto.query_string == "run=sft-2"
    assert not page("run", run="sft-2").get("page_link")


def test_newest_run_is_shown_by_default(make_run: Callable[..., RunFolder]) -> None:
    make_run("first", now=time.time() - 50)
    make_run("second", now=time.time())
    assert page("run").selectbox(key="chosen_run").value == "second"


def test_log_around_an_incident_is_folded_and_searchable(stuck: RunFolder) -> None:
    app = page("run", run="stuck")
    app.toggle(key="around-stuck").set_value(True).run()
    app.selectbox(key="moment-stuck-en").select_index(1).run()  # a time: the end of the data
    app.selectbox(key="span-stuck-en").select(600).run()
    assert not app.exception
    assert HOSTILE in app.get("code")[-1].value
    app.text_input(key="search-stuck").input("nothing of the kind").run()
    assert HOSTILE not in app.get("code")[-1].value


def test_two_runs_can_be_compared(stuck: RunFolder, make_run: Callable[..., RunFolder]) -> None:
    make_run("other", now=time.time(), lines={0: [f"step {n} loss 1.5" for n in range(1, 9)]})
    app = page("run", run="stuck", **{"with": "other"})
    assert not app.exception and app.selectbox(key="compare-stuck").value == "other"
    assert "no metric in common" in texts(app, "caption")


def test_incidents_page_lists_and_filters(stuck: RunFolder) -> None:
    app = page("incidents")
    assert not app.exception and list(app.dataframe[0].value["Run"]) == ["stuck"]
    assert "No incident matches" in texts(page("incidents", show="resolved"), "info")
    assert len(page("incidents", show="open,critical", q="STUCK").dataframe) == 1
    assert "No incident matches" in texts(page("incidents", q="elsewhere"), "info")


def test_incidents_page_without_incidents_explains_itself() -> None:
    app = page("incidents")
    assert not app.exception and "No incidents yet" in texts(app, "markdown")
    app = page("incidents", incident="../../etc/passwd")
    assert not app.exception and "There is no incident" in texts(app, "info")


@pytest.mark.parametrize(("language", "word"), [("en", "cannot be read"), ("zh", "无法读取事件")])
def test_unreadable_incidents_are_reported(home: Path, language: str, word: str) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "incidents.db").write_text("not a database, and longer than the head of one. " * 20)
    for asked in ({}, {"incident": "stuck/1"}):
        app = page("incidents", lang=language, **asked)
        output = texts(app, "warning")
        assert not app.exception and word in output and "not a database" in output
        others = texts(app, "markdown", "info")
        assert not any(none in others for none in ("No incidents yet", "还没有事件", "stuck"))


@pytest.mark.parametrize("with_run", [True, False])
def test_runs_page_reports_unreadable_incidents(
    with_run: bool, home: Path, request: pytest.FixtureRequest
) -> None:
    if with_run:
        request.getfixturevalue("stuck")
    assert not texts(page("runs"), "warning")
    for database in home.glob("incidents.db*"):
        database.unlink()
    (home / "incidents.db").write_text("not a database, and longer than the head of one. " * 20)
    close_shared()  # another dashboard reads the same files
    app = page("runs")
    assert not app.exception and bool(runs_shown(app)) == with_run
    assert "cannot be read" in texts(app, "warning")


@pytest.mark.parametrize(
    ("locale", "asked", "word"),
    [
        ("zh-CN", {}, "还没有事件"),
        ("zh", {"lang": "en"}, "No incidents yet"),
        ("de-DE", {}, "No incidents yet"),
        (None, {}, "No incidents yet"),
    ],
)
def test_language_follows_the_browser(
    monkeypatch: pytest.MonkeyPatch, locale: str | None, asked: dict[str, str], word: str
) -> None:
    monkeypatch.setattr(ContextProxy, "locale", property(lambda _: locale))
    assert word in texts(page("incidents", **asked), "markdown")


@pytest.mark.parametrize(
    ("kept", "asked", "word"),
    [
        ("zh", {}, "还没有事件"),
        ("en", {}, "No incidents yet"),
        ("zh", {"lang": "en"}, "No incidents yet"),
        ("<b>", {}, "还没有事件"),
    ],
)
def test_selected_language_is_kept(
    monkeypatch: pytest.MonkeyPatch, kept: str, asked: dict[str, str], word: str
) -> None:
    monkeypatch.setattr(ContextProxy, "locale", property(lambda _: "zh"))
    monkeypatch.setattr(ContextProxy, "cookies", property(lambda _: {"stallwatch_language": kept}))
    app = page("incidents", **asked)
    assert word in texts(app, "markdown")
    assert "document.cookie" not in texts(app, "html")
    app.session_state["language"] = "en"
    app.session_state["chosen_language"] = "en"
    app.run()
    assert "stallwatch_language=en; path=/" in texts(app, "html")


def test_incident_page_shows_the_problem_and_accepts_actions(
    stuck: RunFolder, home: Path, make_incident: Callable[..., Incident]
) -> None:
    ranks = [
        StackGroup([0, 2], "collective", what="all_gather", frames=["train.py:42 in step"]),
        StackGroup([1], "data", what="DataLoader.__next__", frames=["data.py:7 in load"]),
    ]
    found = StallStacks(time.time(), 1.5, ranks, odd=[1], why="elsewhere")
    store = IncidentStore.at_home(home)
    store.upsert(make_incident(episode=2, opened_at=time.time() - 10, evidence=[HOSTILE], stacks=found))
    store.close()
    key = "stuck/stall/silent-hang-no-error/2"
    app = page("incidents", incident=key)
    assert not app.exception
    assert "What to change" in texts(app, "markdown") and HOSTILE in texts(app, "code")
    assert "rank 1 (suspect)" in texts(app, "code") and "data.py:7" in texts(app, "code")
    app.text_input(key="person").input("Li").run()
    app.button(key="acknowledge").click().run()
    app.text_area(key="note_text").input(f"looked at {HOSTILE}")
    app.get("button")[-1].click().run()
    app.button(key="silence").click().run()
    assert not app.exception
    timeline = app.dataframe[0].value
    assert list(timeline["State"]) == ["opened", "acknowledged", "note"]
    assert list(timeline["Who"]) == ["", "Li", "Li"] and HOSTILE in timeline["Note"][2]
    assert "Silenced until" in texts(app, "caption")
    app.button(key="end_silence").click().run()
    assert "Silenced until" not in texts(app, "caption")
    assert "时间线" in texts(page("incidents", incident=key, lang="zh"), "markdown")


def test_pages_are_available_in_chinese(stuck: RunFolder) -> None:
    app = page("run", run="stuck", lang="zh")
    assert not app.exception and "卡住" in texts(app, "markdown")
    assert [row["状态"] for row in runs_shown(page("runs", lang="zh"))] == ["■ 卡住"]
    app = page("health", lang="zh")
    del app.query_params["lang"]  # links to other pages do not repeat the language
    assert "自检" in texts(app.run(), "markdown")
    box = texts(page("postmortem", lang="zh"), "html")
    assert "选择文件" in box and "每个文件最多 1.0 GiB" in box


def test_locked_store_is_reported_on_every_page(
    page_settings: DashboardSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared().store, "problem", "Another dashboard holds the file.")
    for name in ("runs", "run", "incidents", "postmortem", "rules", "health"):
        assert "Another dashboard" in texts(page(name), "warning").replace("\\", "")


def test_rule_is_found_by_words_and_opened_by_its_link() -> None:
    app = page("rules", q="trace cache", rule="zero3-trace-cache-invalidated")
    assert not app.exception
    assert app.dataframe[0].value["Rule"][0] == "zero3-trace-cache-invalidated"
    assert "What to change" in texts(app, "markdown") and "Invalidate trace cache" in texts(app, "code")
    app = page("rules", rule="jax-processes-lost")  # of a pack, which an agent elsewhere loads
    assert not app.exception and "What to change" in texts(app, "markdown")
    app = page("rules", rule="no-such-rule")
    assert not app.exception and "no\\-such\\-rule" in texts(app, "info")


def test_rules_page_tests_a_pattern_and_drafts_a_page() -> None:
    app = page("rules")
    app.text_input(key="pattern").input(r"(?P<what>\w+) lost")
    app.text_area(key="trial_lines").input(f"{HOSTILE}\nheart lost").run()
    assert not app.exception
    assert list(app.dataframe[1].value["what"]) == ["heart"]
    app.text_input(key="pattern").input("(?=x)").run()
    assert "not a valid RE2 expression" in texts(app, "error")
    failed = 'Traceback (most recent call last):\n  File "/a/b.py", line 3, in f\n    g()\n'
    app.text_area(key="draft_lines").input(f"{failed}b.Odd: the seven seals of {HOSTILE} are open\n").run()
    assert not app.exception and "status: incubating" in texts(app, "code")


def test_health_page_lists_its_sources(stuck: RunFolder) -> None:
    app = page("health")
    assert not app.exception
    assert list(app.dataframe[0].value["Run"]) == ["stuck"]
    assert "answers" in app.dataframe[0].value["State"][0]
    assert "stallwatch" in texts(app, "text") and "No chat is configured" in texts(app, "caption")


def test_test_message_does_not_reveal_the_secret(
    page_settings: DashboardSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s3cr3tw0rd"
    with_chat = replace(page_settings, alert_urls=(f"json://127.0.0.1:9/{secret}",))
    for name, value in to_environment(with_chat).items():
        monkeypatch.setenv(name, value)
    app = page("health")
    app.button(key="send_test").click().run()
    assert not app.exception
    assert "json\\:\\/\\/127" in texts(app, "error")  # no server listens at this address
    assert secret not in texts(app, "error", "text", "markdown", "caption")


def test_run_page_shows_the_locations_of_the_ranks(
    stuck: RunFolder, home: Path, make_incident: Callable[..., Incident]
) -> None:
    groups = [
        StackGroup([0, 2], "collective", what="all_reduce", place="train.py:42 in step"),
        StackGroup([1], "code", place=f"{HOSTILE}:7 in main", frames=[f"{HOSTILE}:7 in main"]),
    ]
    store = IncidentStore.at_home(home)
    store.upsert(
        make_incident(opened_at=time.time() - 10, stacks=StallStacks(1.0, 0.1, groups, [1], "elsewhere"))
    )
    store.close()
    run = page("run", run="stuck")
    assert not run.exception
    assert any(each.label.startswith("Where the ranks were") for each in run.expander)
    assert f"Ranks 0, 2 wait in all_reduce (train.py:42 in step); rank 1 is at {HOSTILE}:7 in main." in texts(
        run, "text"
    )
    assert "rank 1 (suspect): alive" in texts(run, "code")
