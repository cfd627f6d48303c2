"""Metrics of the pages from a real Prometheus that scrapes the real exporter."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

from stallwatch_dashboard.data import frames
from stallwatch_dashboard.data.prometheus import PrometheusStore
from stallwatch_dashboard.data.source import Source, close_shared
from stallwatch_dashboard.settings import DashboardSettings, to_environment
from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.runs.runfolder import AgentInfo
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_rules.locale import render

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus: apt-get install prometheus"),
]
RUN = 'grpo-"7b"\\x'  # a name that must be quoted in a query


@pytest.fixture(scope="module")
def numbers() -> RunMetrics:
    """Return metrics of a run of two ranks, the second one behind."""
    metrics = RunMetrics(RUN)
    metrics.read(5, 100)
    metrics.progress(57, 900)
    metrics.phase("train")
    metrics.thresholds({"train": 300.0})
    metrics.stalled(12.0)
    metrics.host_memory(6 << 30)
    metrics.host_memory_limit(10 << 30)
    metrics.progressed(time.time())
    for rank, step in ((0, 57), (1, 50)):
        metrics.stepped(rank, time.time())
        values = {"step": float(step), "loss": 1.5 + rank, "memory_allocated_bytes": float((20 + rank) << 30)}
        metrics.hooked(Record(rank=rank, number=1, time=time.time(), values=values))
    for _ in range(10):
        metrics.step_took(2.0)
    return metrics


@pytest.fixture(scope="module")
def server(numbers: RunMetrics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a Prometheus that scrapes the run every second."""
    from prometheus_client import start_http_server

    folder = tmp_path_factory.mktemp("prometheus")
    exporter, thread = start_http_server(0, addr="127.0.0.1", registry=numbers.registry)
    scraped = (
        "global: {scrape_interval: 1s}\n"
        "scrape_configs:\n"
        f"  - {{job_name: stallwatch, static_configs: [{{targets: ['127.0.0.1:{exporter.server_port}']}}]}}\n"
    )
    try:
        with prometheus(folder, scraped) as url:
            yield url
    finally:
        exporter.shutdown()
        exporter.server_close()
        thread.join()


def test_run_over_hosts_is_one_run_with_hosts(tmp_path: Path, wait_for: Callable[..., None]) -> None:
    from prometheus_client import start_http_server

    hosts = {host: RunMetrics("moe") for host in ("n1", "n2")}
    for number, (host, metrics) in enumerate(hosts.items()):
        facts = {"run": "moe", "pid": 1, "command": [], "cwd": "/", "started_at": 1.0, "updated_at": 1.0}
        metrics.identity(AgentInfo(host=host, job="8123.0", **facts), {})
        metrics.progress(50 + number, 900)
        metrics.read(1, 100)
        metrics.hooked(Record(rank=number, number=1, time=1.0, values={"step": 50.0 + number}))
    hosts["n1"].ended(time.time(), "finished")
    served = [start_http_server(0, addr="127.0.0.1", registry=item.registry) for item in hosts.values()]
    targets = ", ".join(f"'127.0.0.1:{exporter.server_port}'" for exporter, _ in served)
    config = (
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: stallwatch, static_configs: [{{targets: [{targets}]}}]}}]\n"
    )
    try:
        with prometheus(tmp_path, config) as url:
            store = PrometheusStore(url)
            wait_for(lambda: len(PrometheusStore(url).hosts("moe")) == 2, "both hosts")
            found = frames.from_store(store, "moe")
            assert found.hosts == {0: "n1", 1: "n2"}
            assert found.steps["v"].max() == 51 and found.rank_steps["rank"].nunique() == 2
            assert store.latest("moe", "stallwatch_log_bytes_total") == {(None, ""): 200.0}
            row = store.summaries(["moe"], time.time())["moe"]
            assert (row.step, row.ended_at) == (51, None)  # n2 continues
            hosts["n2"].ended(time.time(), "failed")
            wait_for(lambda: store.summaries(["moe"], time.time())["moe"].ended_as == "failed", "the failure")
            store.close()
    finally:
        for exporter, thread in served:
            exporter.shutdown()
            exporter.server_close()
            thread.join()


@contextlib.contextmanager
def prometheus(folder: Path, config: str) -> Iterator[str]:
    """Yield the address of a Prometheus on ``folder/data``."""
    (folder / "prometheus.yml").write_text(config)
    port = free_port()
    child = subprocess.Popen(
        [
            str(PROMETHEUS),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait(20)


@pytest.fixture
def store(server: str, wait_for: Callable[..., None]) -> PrometheusStore:
    """Return a store that is queried after two scrapes of the run."""
    made = PrometheusStore(server)
    wait_for(lambda: len(made.series(RUN, "stallwatch_step")) >= 2, "two scrapes", 120.0)
    return made


def test_row_equals_that_of_the_embedded_store(store: PrometheusStore) -> None:
    assert set(store.last_seen()) == {RUN}
    found = store.summaries([RUN], time.time())[RUN]
    assert (found.step, found.total_steps, found.phase) == (57, 900, "train")
    assert (found.step_seconds, found.stalled_seconds, found.stepping_seconds) == (2.0, 12.0, 20.0)
    assert (found.memory_bytes, found.host_memory_limit_bytes) == (21 << 30, 10 << 30)
    assert not found.overdue and found.started_at is not None
    later = store.summaries([RUN], time.time() + 600)[RUN]
    assert later.alarm_at is not None and not later.overdue, "its agent says whether it is stalled"
    assert store.problem is None


def test_frames_of_a_run_are_complete(store: PrometheusStore) -> None:
    found = frames.from_store(store, RUN)
    assert found.steps["v"].iloc[-1] == 57 and found.total_steps == 900
    assert sorted(found.loss["rank"].unique()) == [0, 1]
    assert found.memory_kind == "allocated" and [name for _, name in found.phases] == ["train"]
    assert found.threshold["v"].iloc[-1] == 300.0
    assert set(found.rank_steps.groupby("rank")["v"].last()) == {57, 50}


def test_unknown_run_is_empty(store: PrometheusStore) -> None:
    assert store.series("nobody", "stallwatch_step").empty and store.first_seen("nobody") is None
    assert store.latest("nobody", "stallwatch_step") == {}
    assert store.summaries(["nobody"], time.time())["nobody"].step is None


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool: apt-get install prometheus")
def test_runs_that_are_no_longer_scraped_keep_their_last_values(
    tmp_path: Path, wait_for: Callable[..., None]
) -> None:
    """The times are exact to a second, and two queries suffice for any number of runs."""
    now = int(time.time())
    ends = {f"gone.{n}": now - 3000 - 70 * n for n in range(60)}
    lines = [
        f'{name}{{run="{run}"{labels}}} {value} {end - 60 * back}'
        for name, labels, value in (
            ("stallwatch_log_lines_total", "", 5),
            ("stallwatch_step", "", 41),
            ("stallwatch_memory_peak_bytes", ',rank="1"', 2**30),
            ("stallwatch_memory_peak_bytes", ',rank="0"', 2**31),
        )
        for run, end in ends.items()
        for back in range(10, -1, -1)
    ]
    text = tmp_path / "history.om"
    text.write_text("\n".join([*lines, "# EOF\n"]))
    words = [str(PROMTOOL), "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text)]
    subprocess.run([*words, str(tmp_path / "data")], check=True, stdout=subprocess.DEVNULL)
    with prometheus(tmp_path, "scrape_configs: []\n") as url:
        # this clock keeps answers fresh on a slow machine
        store = PrometheusStore(url, clock=lambda: float(now))
        wait_for(lambda: bool(store.last_seen()), "the history", 120.0)
        assert store.last_seen() == ends
        asked = noted(store)
        found = store.summaries(ends, float(now))
        assert {value.step for value in found.values()} == {41}
        assert {value.memory_bytes for value in found.values()} == {2**31}
        assert sum("last_over_time" in question for question in asked) == 2
        asked.clear()
        assert store.summaries(ends, float(now)) == found and store.last_seen() == ends
        assert not any("last_over_time" in question for question in asked)
        store.close()


def test_run_page_sends_four_queries(store: PrometheusStore, server: str) -> None:
    """Two queries return a line per rank, one all other lines, and one the current values.

    Once a minute, a further query returns the hosts of the run.
    """
    now = time.time()
    still = PrometheusStore(server, clock=lambda: now)
    still.first_seen(RUN)
    assert still.hosts(RUN) == {}
    asked = noted(still)
    found = frames.from_store(still, RUN)
    assert not found.steps.empty and not found.rank_steps.empty
    assert len(asked) == 4 and all(question.startswith("{__name__=~") for question in asked)


def test_range_that_ends_now_has_one_last_point(store: PrometheusStore, server: str) -> None:
    now = float(int(time.time()) + 1)  # a multiple of the width, as all times of a young run are
    still = PrometheusStore(server, clock=lambda: now)
    found = still.series(RUN, "stallwatch_rank_step")
    assert not found.empty and not found.duplicated(["rank", "labels", "t"]).any()
    assert not frames.from_store(still, RUN).steps.empty


def noted(store: PrometheusStore) -> list[str]:
    """Return a list that records the store's queries from now on."""
    asked: list[str] = []
    real = store._server.get

    def get(path: str, **query: str) -> Any:
        asked.append(query["query"])
        return real(path, **query)

    store._server.get = get  # type: ignore[method-assign]
    return asked


def test_unreachable_server_is_reported_without_its_password() -> None:
    store = PrometheusStore(f"http://user:s3cr3t@127.0.0.1:{free_port()}")
    assert store.last_seen() == {} and store.series("run", "stallwatch_step").empty
    assert "Prometheus" in (problem := render(store.problem or "")) and "s3cr3t" not in problem


def test_pages_work_with_prometheus(
    store: PrometheusStore, server: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app_test = pytest.importorskip("streamlit.testing.v1")
    from drivenpages import runs_shown

    for name, value in to_environment(DashboardSettings(home=home, prometheus_url=server)).items():
        monkeypatch.setenv(name, value)
    try:
        for name in ("runs", "run", "incidents", "health"):
            script = f"from stallwatch_dashboard.app import main\nmain({name!r})"
            app = app_test.AppTest.from_string(script, default_timeout=120)
            app.query_params["run"] = RUN
            app.run()
            assert not app.exception, name
            if name == "runs":
                assert [(item["Run"], item["State"]) for item in runs_shown(app)] == [(RUN, "▶ training")]
            if name == "run":
                assert {metric.label: metric.value for metric in app.metric}["Step"] == "57 / 900"
    finally:
        close_shared()


def test_runs_without_a_local_folder_are_listed(store: PrometheusStore, server: str, home: Path) -> None:
    source = Source(DashboardSettings(home=home, prometheus_url=server))
    try:
        (row,) = source.rows()
        assert (row.run, row.state, row.phase) == (RUN, "training", "train")
        assert source.run_names() == [RUN] and source.targets() == []
        assert source.frames(RUN).last_step_at is not None
    finally:
        source.close()
