"""Metrics of a run over several hosts: the reports of all agents are stored, and merged as in alerts."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from prometheus_client import generate_latest

from stallwatch_dashboard.data import frames
from stallwatch_dashboard.data.metrics_page import Reading, parse
from stallwatch_dashboard.data.scraper import Scraper
from stallwatch_dashboard.data.store import MetricStore
from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.runs.runfolder import AgentInfo
from stallwatch_exporter.serving.metrics import RunMetrics

RUN = "sft-8123.0"


def metrics_of(host: str, ranks: range, *, step: int = 7, job: str = "8123.0") -> RunMetrics:
    """Return the metrics that the agent of one host publishes."""
    metrics = RunMetrics(RUN)
    times = {"started_at": 1.0, "updated_at": 1.0}
    metrics.identity(AgentInfo(run=RUN, pid=1, host=host, command=[], cwd="/", job=job, **times), {})
    metrics.progress(step, 900)
    metrics.read(10, 1000)
    metrics.phase("train")
    metrics.thresholds({"train": 30.0})
    metrics.step_took(2.0)
    for rank in ranks:
        metrics.hooked(Record(rank, 1, 1.0, {"step": float(step)}))
    return metrics


def page(metrics: RunMetrics, port: int = 19400) -> list[Reading]:
    return parse(generate_latest(metrics.registry).decode(), port)


def reading(agent: str, name: str, value: float, rank: int | None = None, **labels: str) -> Reading:
    return Reading(RUN, f"stallwatch_{name}", rank, json.dumps(labels) if labels else "", value, agent)


def three(second: float, *steps: float) -> list[Reading]:
    return [reading(f"n{n}:1", "step", step) for n, step in enumerate(steps, 1)]


def test_metrics_page_names_the_host_only_of_runs_over_hosts() -> None:
    assert {item.agent for item in page(metrics_of("n2", range(2)))} == {"n2:19400"}
    assert {item.agent for item in page(metrics_of("n2", range(2), job=""))} == {""}


def test_reports_of_hosts_are_stored_separately_and_read_together() -> None:
    store = MetricStore()
    for second in range(5):
        store.write(three(second, second, second + 2, second + 1), 100.0 + second)
        store.write(
            [reading("n1:1", "log_bytes_total", 10.0), reading("n2:1", "log_bytes_total", 5.0)], 100.0
        )
    assert store.latest(RUN, "stallwatch_step") == {(None, ""): 6.0}
    assert store.latest(RUN, "stallwatch_log_bytes_total") == {(None, ""): 15.0}
    found = frames.from_store(store, RUN)
    assert list(found.steps["v"]) == [2, 3, 4, 5, 6]
    series = store.series(RUN, "stallwatch_step")
    assert list(series[series["agent"] == "n1:1"]["v"]) == [0, 1, 2, 3, 4]


def test_constant_values_of_several_hosts_need_no_new_points() -> None:
    store = MetricStore()
    assert [store.write(three(second, 1, 2, 3), second) for second in (0.0, 1.0, 2.0)] == [3, 0, 0]


def test_rank_belongs_to_the_host_that_reported_it_last() -> None:
    store = MetricStore()
    store.write([reading("n1:1", "rank_step", 1, rank=0), reading("n2:1", "rank_step", 1, rank=8)], 100.0)
    store.write([reading("n1:1", "rank_step", 2, rank=0), reading("n3:1", "rank_step", 2, rank=8)], 200.0)
    found = frames.from_store(store, RUN)
    assert found.hosts == {0: "n1", 8: "n3"}
    assert list(found.rank_steps["rank"]) == [0, 0, 8, 8] and list(found.rank_steps["v"]) == [1, 2, 1, 2]
    assert store.hosts(RUN) == {"n1": 200.0, "n2": 100.0, "n3": 200.0}


def test_values_of_a_lost_host_expire() -> None:
    store = MetricStore()
    store.write([reading("n1:1", "stalled", 0), reading("n2:1", "stalled", 1)], 100.0)
    assert store.latest(RUN, "stallwatch_stalled") == {(None, ""): 1.0}
    for second in (130.0, 161.0):
        store.write([reading("n1:1", "stalled", 0)], second)
    assert store.latest(RUN, "stallwatch_stalled") == {(None, ""): 0.0}


@pytest.mark.parametrize(
    ("endings", "ended_as"),
    [
        ({"n1": "finished"}, ""),
        ({"n1": "finished", "n2": "finished"}, "finished"),
        ({"n1": "finished", "n2": "failed"}, "failed"),
        ({"n2": "failed"}, "failed"),
    ],
)
def test_run_ends_when_all_hosts_ended_or_one_failed(endings: dict[str, str], ended_as: str) -> None:
    store = MetricStore()
    ends = {"n1": 150.0, "n2": 140.0}
    store.write(three(0, 5, 5), 151.0)
    store.write(
        [
            reading(f"{host}:1", "end_timestamp_seconds", ends[host], ending=kind)
            for host, kind in endings.items()
        ],
        151.0,
    )
    assert store.summaries([RUN], 151.0)[RUN].ended_as == ended_as


def test_phases_and_step_times_come_from_one_host_at_a_time() -> None:
    store = MetricStore()

    def write(at: float, agent: str, phase: str, seconds: float, steps: float) -> None:
        store.write(
            [
                *(
                    reading(agent, "phase", float(name == phase), stallwatch_phase=name)
                    for name in ("train", "save", "idle")
                ),
                reading(agent, "step_duration_seconds_sum", seconds),
                reading(agent, "step_duration_seconds_count", steps),
            ],
            at,
        )

    for step in range(10):
        write(100.0 + step, "n1:1", "train", 2.0 * step, step)
        write(100.0 + step, "n2:1", "save", 3.0 * step, step)
    found = frames.from_store(store, RUN)
    assert [name for _, name in found.phases] == ["train"]
    assert set(found.step_seconds["v"]) == {2.0}
    assert store.summaries([RUN], 110.0)[RUN].step_seconds == 2.0
    for step in range(10, 100):
        write(100.0 + step, "n2:1", "save", 3.0 * step, step)
    found = frames.from_store(store, RUN)
    assert [name for _, name in found.phases] == ["save"]
    assert store.summaries([RUN], 200.0)[RUN].step_seconds == 3.0


def test_file_of_an_older_version_is_continued(tmp_path: Path) -> None:
    file = tmp_path / "metrics.duckdb"
    with duckdb.connect(str(file)) as old:
        old.execute(
            "CREATE TABLE series (id INTEGER PRIMARY KEY, run VARCHAR NOT NULL, metric VARCHAR NOT NULL,"
            " rank INTEGER, labels VARCHAR NOT NULL);"
            "CREATE TABLE points (series INTEGER NOT NULL, t DOUBLE NOT NULL, v DOUBLE);"
            "INSERT INTO series VALUES (1, 'old', 'stallwatch_step', NULL, '');"
            "INSERT INTO points VALUES (1, 100.0, 5.0)"
        )
    store = MetricStore(file)
    store.write([Reading("old", "stallwatch_step", None, "", 6.0), *three(0, 1, 2)], 101.0)
    store.close()
    again = MetricStore(file)
    assert list(again.series("old", "stallwatch_step")["v"]) == [5.0, 6.0]
    assert again.latest("old", "stallwatch_step") == {(None, ""): 6.0}
    assert again.latest(RUN, "stallwatch_step") == {(None, ""): 2.0}
    assert again.hosts(RUN) == {"n1": 101.0, "n2": 101.0} and again.hosts("old") == {}
    again.close()


def test_trends_of_several_hosts_are_combined_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "metrics.duckdb"
    store = MetricStore(file)
    for step in range(30):
        readings = []
        for agent, seconds in (("n1:1", 2.0), ("n2:1", 5.0)):
            readings += [
                reading(agent, "loss", seconds + 1 / (1 + step)),
                reading(agent, "step_duration_seconds_sum", seconds * step),
                reading(agent, "step_duration_seconds_count", step),
            ]
        store.write(readings, 100.0 + step)
    before = store.summaries([RUN], 130.0)[RUN]
    assert before.step_seconds == 2.0 and max(before.losses) == 3.0 and len(before.losses) == 30
    store.close()
    again = MetricStore(file)
    after = again.summaries([RUN], 130.0)[RUN]
    assert (after.step_seconds, max(after.losses)) == (2.0, 3.0)
    again.close()


def test_configured_targets_of_a_run_are_its_hosts(tmp_path: Path) -> None:
    pages = {
        f"http://{host}:19400/metrics": generate_latest(metrics_of(host, ranks).registry).decode()
        for host, ranks in (("n1", range(4)), ("n2", range(4, 8)))
    }
    store = MetricStore()
    scraper = Scraper(store, tmp_path, ["n1:19400", "n2:19400"], get=lambda url, _: pages[url])
    scraper.scrape_once()
    scraper.close()
    assert set(store.hosts(RUN)) == {"n1", "n2"}
    assert frames.from_store(store, RUN).hosts == {
        **dict.fromkeys(range(4), "n1"),
        **dict.fromkeys(range(4, 8), "n2"),
    }
