"""Runs, metrics and incidents of this host, combined."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch_alerts.store import IncidentStore
from stallwatch_dashboard.data.metrics_page import Reading
from stallwatch_dashboard.data.overview import Numbers
from stallwatch_dashboard.data.source import Source, journal, shared
from stallwatch_dashboard.pages.runs_table import table
from stallwatch_dashboard.settings import DashboardSettings
from stallwatch_dashboard.verdict import of_run
from stallwatch_dashboard.words import Reader
from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.incident import UNKNOWN_FAILURE, Incident
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_rules.endings import Ending, EndingKind
from stallwatch_rules.records import Diagnosis, Place, Primary, Progress, UnknownException

NOW = 1_795_000_000.0
MakeRun = Callable[..., RunFolder]
MakeIncident = Callable[..., Incident]


@pytest.fixture
def source(home: Path) -> Iterator[Source]:
    made = Source(DashboardSettings(home=home), clock=lambda: NOW)
    yield made
    made.close()


def test_empty_state_folder_has_no_runs(source: Source) -> None:
    assert source.rows() == [] and source.run_names() == []
    assert source.row("x") is None and source.incidents("x") == [] and source.frames("x").nothing


def test_duration_of_an_incident_ends_with_its_stopped_tail(
    source: Source, home: Path, make_run: MakeRun, make_incident: MakeIncident
) -> None:
    make_run("stuck", state="finished", ended_at=NOW - 100, ending=Ending("unknown", None))
    store = IncidentStore.at_home(home)
    store.upsert(make_incident(opened_at=NOW - 300, updated_at=NOW - 120))
    store.close()
    (left,) = source.incidents("stuck")
    assert left.watch_ended and left.resolved_at == NOW - 100
    assert source.newest_incidents(10) == [left]


def test_row_of_a_stalled_run_combines_record_and_metrics(
    source: Source,
    home: Path,
    make_run: MakeRun,
    make_incident: MakeIncident,
    serve_metrics: Callable[..., str],
) -> None:
    metrics = RunMetrics("stuck")
    metrics.progress(57, 900)
    metrics.stepped(0, NOW - 30)
    make_run("stuck", state="stalled", endpoint=serve_metrics(metrics))
    store = IncidentStore.at_home(home)
    store.upsert(make_incident())
    store.close()
    source.scraper.scrape_once()
    (row,) = source.rows()
    assert (row.run, row.state, row.step, row.total_steps) == ("stuck", "stalled", 57, 900)
    assert [incident.rule for incident in row.open_incidents] == ["silent-hang-no-error"]
    assert source.row("stuck") == row
    assert source.frames("stuck").last_step_at == NOW - 30


def test_run_of_a_dead_agent_is_stale(source: Source, make_run: MakeRun) -> None:
    make_run("lost", pid=2**22 + 1)
    make_run("quiet", updated_at=NOW - 60)
    assert {row.run: row.state for row in source.rows()} == {"lost": "stale", "quiet": "stale"}


def test_run_without_scrapes_shows_the_record_of_its_agent(source: Source, make_run: MakeRun) -> None:
    """This holds for watched runs too: an agent may serve its metrics only on a loopback address."""
    known = {"state": "training", "step": 7, "total_steps": 900, "loss": 0.25}
    make_run("lost", pid=2**22 + 1, **known)
    make_run("far", **known)
    found = {row.run: (row.state, row.step, row.total_steps, row.loss) for row in source.rows()}
    assert found == {"lost": ("stale", 7, 900, 0.25), "far": ("training", 7, 900, 0.25)}


def test_run_over_hosts_has_the_same_step_and_cause_on_both_pages(
    source: Source, make_run: MakeRun, make_incident: MakeIncident
) -> None:
    """Without a database, the coordinator's journal counts, not the incidents of single hosts."""
    folders = [make_run(f"sft+n{node}", step=60 + node, total_steps=900, host=f"n{node}") for node in (1, 2)]
    for folder in folders:
        folder.write_info(run="sft", key="5f3a", state="stalled")
    folders[1].append_incident(make_incident(run="sft", rule="silent-hang-no-error"))
    folders[0].append_run_incident(
        make_incident(run="sft", rule="nccl-collective-timeout", hosts=["n1", "n2"])
    )
    (row,) = source.rows()
    whole = source.row("sft")
    assert whole is not None and row.incident == whole.incident
    assert (row.step, whole.step, row.total_steps, row.hosts) == (62, 62, 900, ("n1", "n2"))
    (shown,) = table([row], Reader(now=NOW), {})["rows"]
    assert "nccl-collective-timeout" in shown["cells"]
    assert of_run(whole, {}, Reader(now=NOW), None).cause == "nccl-collective-timeout"


def test_unmerged_incidents_are_shown_with_merged_ones(
    source: Source, make_run: MakeRun, make_incident: MakeIncident
) -> None:
    """It was alone, or the folder of the host that merged is not here."""
    folders = [make_run(f"sft+n{node}", host=f"n{node}") for node in (1, 2)]
    for number, folder in enumerate(folders, 1):
        folder.write_info(run="sft", key="5f3a", agent=f"a{number}")
    own = [make_incident(run="sft", episode=episode) for episode in (1, 2)]
    for item in own:
        folders[1].append_incident(item)
    merged = make_incident(run="sft", hosts=["n1", "n2"], aliases=[f"a2 {own[0].id}"])
    folders[0].append_run_incident(merged)
    assert sorted((incident.id, incident.hosts) for incident in source.incidents("sft")) == [
        (merged.id, ["n1", "n2"]),
        (own[1].id, []),
    ]
    alone = make_incident(run="sft", episode=3, aliases=[f"a2 {own[1].id}"])  # as people know it
    folders[1].append_run_incident(alone)
    assert sorted(incident.id for incident in source.incidents("sft")) == [merged.id, alone.id]


def test_run_that_ended_without_scrapes_shows_its_diagnosis(source: Source, make_run: MakeRun) -> None:
    ending = Ending(kind="failed", exit_code=1, detail="exit code 1")
    folder = make_run("done", state="failed", ended_at=NOW - 60, ending=ending)
    folder.write_json("diagnosis.json", Diagnosis("failed", progress=Progress(1, 400, 800, 0.5)))
    (row,) = source.rows()
    assert (row.state, row.step, row.total_steps, row.loss, row.ending) == (
        "failed",
        400,
        800,
        0.5,
        ending,
    )


def test_failed_run_has_the_same_cause_and_step_on_both_pages(source: Source, make_run: MakeRun) -> None:
    """The log copies show every second step of those that the probe counted."""
    ending = Ending(kind="failed", exit_code=1, detail="exit code 1")
    folder = make_run("done", state="failed", ended_at=NOW - 60, ending=ending, lines={0: ["step 148/400"]})
    raised = UnknownException(
        "ValueError", "bad batch", [], 1, Place(None, "x", 1, None, None, ""), ["/a/t.py:8 in f"]
    )
    unknown = Diagnosis("unknown-failure", unknown=[raised], progress=Progress(1, 149, 400))
    folder.write_json("diagnosis.json", unknown)
    row = source.row("done")
    assert row is not None and (row.step, row.cause) == (149, UNKNOWN_FAILURE)
    (shown,) = table([row], Reader(now=NOW), {})["rows"]
    assert "ValueError: bad batch (t.py:8)" in shown["cells"]
    rule = "gloo-collective-timeout"
    primary = Primary(rule, "T", "symptom", "fatal", 0.6, 1, "x", 1, None, 149, [], {}, "", [])
    folder.write_json("diagnosis.json", Diagnosis("failed", primary, progress=Progress(1, 149, 400)))
    (row,) = source.rows()
    assert (row.step, row.cause) == (149, "gloo-collective-timeout")
    (shown,) = table([row], Reader(now=NOW), {})["rows"]
    assert "gloo-collective-timeout" in shown["cells"] and "gloo-collective-timeout" in shown["found"]


def test_run_that_ended_after_its_last_scrape_shows_its_end(
    source: Source, make_run: MakeRun, serve_metrics: Callable[..., str]
) -> None:
    metrics = RunMetrics("done")
    metrics.progress(22, 30)
    folder = make_run("done", endpoint=serve_metrics(metrics))
    source.scraper.scrape_once()
    row = source.row("done")
    assert row is not None and (row.state, row.step) == ("training", 22)
    folder.write_info(state="finished", ended_at=NOW, ending=Ending(kind="finished", exit_code=0, detail="0"))
    folder.write_json("diagnosis.json", Diagnosis("healthy", progress=Progress(1, 30, 30, 0.5)))
    row = source.row("done")
    assert row is not None and (row.step, row.total_steps, row.loss) == (30, 30, 0.5)
    assert source.rows() == [row]


@pytest.mark.parametrize(
    ("verdict", "state"), [("healthy", "unwatched"), ("unknown-failure", "failed")], ids=["well", "failed"]
)
def test_log_that_is_no_longer_followed_is_not_a_finished_run(
    source: Source, make_run: MakeRun, verdict: str, state: str
) -> None:
    ending = Ending(kind="unknown", exit_code=None, detail="Stallwatch stopped watching the run.")
    folder = make_run("tailed", state="finished", ended_at=NOW - 60, ending=ending)
    folder.write_json("diagnosis.json", Diagnosis(verdict, progress=Progress(1, 50, 500, 1.4)))
    assert [(row.state, row.step, row.cause) for row in source.rows()] == [
        (state, 50, "unknown-failure" if state == "failed" else "")
    ]


def test_page_of_an_ended_run_has_charts_from_its_log(source: Source, make_run: MakeRun) -> None:
    make_run(
        "done", state="finished", ended_at=NOW - 60, lines={0: [f"step {n} loss 1.5" for n in range(1, 9)]}
    )
    found = source.frames("done")
    assert found.rebuilt and found.steps["v"].iloc[-1] == 8
    row = source.row("done")
    assert row is not None and (row.step, row.loss, row.step_seconds) == (8, 1.5, 1.0)


def test_dashboard_opened_later_shows_the_run_from_its_start(
    source: Source, make_run: MakeRun, serve_metrics: Callable[..., str]
) -> None:
    metrics = RunMetrics("late")
    metrics.progress(60, 900)
    make_run("late", endpoint=serve_metrics(metrics), lines={0: [f"step {n} loss 1.5" for n in range(1, 51)]})
    source.scraper.scrape_once()
    steps = source.frames("late").steps
    assert steps["v"].iloc[0] == 1 and steps["v"].iloc[-1] == 60
    assert steps["t"].is_monotonic_increasing


def test_incidents_come_from_the_journal_without_a_database(
    source: Source, make_run: MakeRun, make_incident: MakeIncident
) -> None:
    folder = make_run("stuck")
    folder.append_incident(make_incident())
    over = {"status": "resolved", "resolution": "recovered", "resolved_at": NOW, "updated_at": NOW + 1}
    folder.append_incident(make_incident(**over))
    folder.append_incident(make_incident(episode=2, opened_at=NOW - 1, updated_at=NOW + 2))
    with (folder.path / "incidents.jsonl").open("ab") as out:
        out.write(b'{"half a li')
    assert [(i.episode, i.status) for i in source.incidents("stuck")] == [(2, "open"), (1, "resolved")]
    assert journal(folder.path / "nowhere") == []


def test_open_stall_of_an_earlier_start_is_not_shown_for_the_next(
    source: Source, home: Path, make_incident: MakeIncident
) -> None:
    identity = RunIdentity(key="5f" * 8, job="sft", origin="command")
    for began in (NOW - 900, NOW - 50):
        folder = RunFolder.create("r", ["x"], home=home, now=began, identity=identity)
        if began < NOW - 100:  # the agent was killed
            folder.append_incident(make_incident(run=folder.run))
        folder.write_info(updated_at=began + 49, state="training", step=7)
    (row,) = source.rows()
    assert (row.state, row.open_incidents, source.incidents(row.run)) == ("training", (), [])


def test_corrupt_incident_database_does_not_break_pages(
    source: Source, home: Path, make_run: MakeRun, make_incident: MakeIncident
) -> None:
    make_run("stuck").append_incident(make_incident())
    (home / "incidents.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        sqlite3.connect(home / "incidents.db").execute("select 1 from sqlite_master")
    assert len(source.incidents("stuck")) == 1
    assert [row.run for row in source.rows()] == ["stuck"]


def test_corrupt_record_affects_only_its_run(source: Source, make_run: MakeRun) -> None:
    make_run("fine")
    (make_run("odd").path / "agent.json").write_bytes(b"{")
    assert [row.run for row in source.rows()] == ["fine"]


def test_runs_of_other_hosts_are_listed(home: Path, serve_metrics: Callable[..., str]) -> None:
    metrics = RunMetrics("far")
    metrics.progress(3, None)
    target = serve_metrics(metrics)
    source = Source(DashboardSettings(home=home, targets=(target,)), clock=lambda: NOW)
    try:
        source.scraper.scrape_once()
        assert [(row.run, row.state, row.step) for row in source.rows()] == [("far", "training", 3)]
        assert source.run_names() == ["far"]
    finally:
        source.close()


def test_remote_run_is_stale_without_a_recent_scrape_or_record(
    home: Path, make_run: MakeRun, serve_metrics: Callable[..., str]
) -> None:
    """The record has the time of another clock, here one that is 4 s behind."""
    start = time.time()  # an agent elsewhere is gone by the real clock
    now = start
    metrics = RunMetrics("far")
    metrics.progress(3, None)
    run = {"host": "n2", "state": "training", "updated_at": start - 4}
    folder = make_run("far", endpoint=serve_metrics(metrics), **run)
    make_run("unreachable", step=7, **run)
    source = Source(DashboardSettings(home=home), clock=lambda: now)

    def states() -> tuple[str, str]:
        rows = {row.run: row.state for row in source.rows()}
        return rows["far"], rows["unreachable"]

    try:
        source.scraper.scrape_once()
        now = start + 11  # the scrape is out of date, the records are not
        assert states() == ("training", "training")
        now = start + 97
        assert states() == ("stale", "stale")
        folder.write_info(updated_at=now - 4)
        assert states() == ("training", "stale")
        now = start + 200
        source.store.last_seen = lambda: {"far": now - 9, "unreachable": now - 11}
        assert states() == ("training", "stale")
    finally:
        source.close()


def test_run_scraped_every_30_seconds_is_not_stale_between_scrapes(home: Path) -> None:
    source = Source(DashboardSettings(home=home, prometheus_url="http://127.0.0.1:9"), clock=lambda: NOW)
    try:
        for age, state in ((59.0, "training"), (101.0, "stale")):
            source.store.last_seen = lambda age=age: {"far": NOW - age}
            source.store.summaries = lambda runs, now: {run: Numbers(step=3.0) for run in runs}
            assert [row.state for row in source.rows()] == [state]
    finally:
        source.close()


def test_settings_reach_the_serving_process(
    page_settings: DashboardSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared().settings == page_settings
    assert shared() is shared()


def test_settings_round_trip_through_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stallwatch_dashboard.settings import from_environment, to_environment

    settings = replace(
        DashboardSettings(home=home), targets=("a:1", "b:2"), rules=("/r",), port=9, insecure=True
    )
    for name, value in to_environment(settings).items():
        monkeypatch.setenv(name, value)
    assert from_environment() == settings
    assert msgspec.json.decode(next(iter(to_environment(settings).values())))["targets"] == ["a:1", "b:2"]


def on_hosts(make_run: MakeRun, home: Path, *hosts: dict[str, Any]) -> list[Path]:
    """Return the folders of one run's agents on a shared state folder, as its hosts leave them."""
    folders = []
    for node, facts in enumerate(hosts):
        host = f"n{node + 1}"
        made = make_run(f"made-{node}", lines=facts.pop("lines", None))
        folder = made.path.rename(home / "runs" / ("sft-1" if node == 0 else f"sft-1+{host}"))
        known = {"run": "sft-1", "host": host, "job": "1", "key": "k" * 16, "node": node}
        info = msgspec.structs.replace(made.info, **known, **facts)
        (folder / "agent.json").write_bytes(msgspec.json.encode(info))
        folders.append(folder)
    return folders


def test_run_over_hosts_is_one_row_with_its_hosts(source: Source, make_run: MakeRun, home: Path) -> None:
    on_hosts(make_run, home, {}, {"state": "stalled"}, {})
    assert source.run_names() == ["sft-1"]
    (row,) = source.rows()
    assert (row.run, row.state, row.host, row.hosts) == ("sft-1", "stalled", "n1", ("n1", "n2", "n3"))
    found = table([row], Reader("en", now=NOW), {})["rows"][0]
    assert "n1–n3" in found["cells"] and "n2" in found["found"]


@pytest.mark.parametrize(
    ("endings", "state"),
    [
        (("finished", None, None), "training"),
        (("finished", "finished", "finished"), "finished"),
        (("finished", "oom-killed", None), "failed"),
        (("failed", "finished", "finished"), "failed"),
    ],
)
def test_run_ends_when_all_hosts_ended_or_one_failed(
    source: Source, make_run: MakeRun, home: Path, endings: tuple[EndingKind | None, ...], state: str
) -> None:
    def facts(at: int, kind: EndingKind | None) -> dict[str, Any]:
        if kind is None:
            return {}
        word = "finished" if kind == "finished" else "failed"
        return {"ended_at": NOW - 9 + at, "ending": Ending(kind, 0), "state": word}

    on_hosts(make_run, home, *(facts(at, kind) for at, kind in enumerate(endings)))
    source.store.write([Reading("sft-1", "stallwatch_step", None, "", 5.0)], NOW)  # type: ignore[attr-defined]
    (row,) = source.rows()
    assert row.state == state and (row.ended_at is not None) == (state != "training")
    assert source.ended() == ({"sft-1"} if row.ended_at else set())


def test_run_without_its_first_host_continues(source: Source, make_run: MakeRun, home: Path) -> None:
    on_hosts(make_run, home, {"pid": 1}, {})
    (row,) = source.rows()
    assert row.state == "training"


def test_logs_and_metrics_of_all_hosts_are_read(source: Source, make_run: MakeRun, home: Path) -> None:
    lines = {0: ["step 5/900 loss 2.0", "step 6/900 loss 1.9"]}
    on_hosts(make_run, home, {"lines": lines}, {"lines": {8: ["step 6/900 loss 1.8"], None: ["said by n2"]}})
    copies = source.copies("sft-1")
    assert [(copy.rank, copy.host) for copy in copies] == [(0, "n1"), (8, "n2"), (None, "n2")]
    assert set(source.frames("sft-1").loss["rank"]) == {0, 8}
    make_run("alone", lines=lines)
    assert [(copy.rank, copy.host) for copy in source.copies("alone")] == [(0, "")]


def test_incident_reported_by_several_hosts_is_shown_once(
    source: Source, make_run: MakeRun, make_incident: MakeIncident, home: Path
) -> None:
    folders = on_hosts(make_run, home, {}, {}, {})
    base = "sft-1/stall/silent-hang-no-error"
    mine = make_incident(run="sft-1", id=f"{base}/1", updated_at=NOW - 5)
    merged = make_incident(run="sft-1", id=f"{base}/1", hosts=["n1", "n2"], aliases=[f"{base}/7"])
    apart = make_incident(run="sft-1", id=f"{base}/7", episode=7)
    for folder, given in zip(folders, (mine, merged, apart), strict=True):
        (folder / "incidents.jsonl").write_bytes(msgspec.json.encode(given) + b"\n")
    (found,) = source.incidents("sft-1")
    assert found.hosts == ["n1", "n2"]
    again = source.incident(f"{base}/7")
    assert again is not None and again.id == found.id
