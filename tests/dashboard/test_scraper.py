"""A round of scraping, against real endpoints and with a simulated clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from stallwatch_dashboard.data.metrics_page import ScrapeError, fetch
from stallwatch_dashboard.data.scraper import Scraper, TargetStatus
from stallwatch_dashboard.data.store import MetricStore
from stallwatch_dashboard.health import state_of
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.serving.server import DASHBOARD_HEADER
from stallwatch_rules.messages import has, message

NOW = 1_795_000_000.0
MakeRun = Callable[..., RunFolder]
Serve = Callable[[RunMetrics], str]


class Clock:
    """Clock that the test moves."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def answered(scraper: Scraper, run: str) -> float | None:
    """Return the time at which the run's own agent last answered."""
    times = [item.answered for item in scraper.status() if item.run == run and item.answered is not None]
    return max(times, default=None)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MetricStore:
    return MetricStore()


@pytest.fixture
def make_scraper(store: MetricStore, home: Path, clock: Clock) -> Iterator[Callable[..., Scraper]]:
    made: list[Scraper] = []

    def make(**options: object) -> Scraper:
        # A round waits this long for answers: a busy machine needs more than a second.
        made.append(Scraper(store, home, clock=clock, **{"every": 60.0, **options}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for scraper in made:
        scraper.close()


def test_metrics_of_a_run_are_scraped(
    make_run: MakeRun,
    serve_metrics: Serve,
    make_scraper: Callable[..., Scraper],
    store: MetricStore,
    clock: Clock,
) -> None:
    metrics = RunMetrics("grpo")
    make_run("grpo", endpoint=serve_metrics(metrics))
    scraper = make_scraper()
    for step in (1, 2, 2, 3):
        metrics.progress(step, 900)
        scraper.scrape_once()
        clock.now += 1
    frame = store.series("grpo", "stallwatch_step")
    assert list(frame["v"]) == [1, 2, 2, 3]
    assert list(frame["t"] - NOW) == [0, 1, 2, 3]
    assert answered(scraper, "grpo") == NOW + 3


def test_failing_endpoint_is_counted_and_does_not_affect_others(
    make_run: MakeRun, serve_metrics: Serve, make_scraper: Callable[..., Scraper], store: MetricStore
) -> None:
    metrics = RunMetrics("good")
    metrics.progress(5, None)
    make_run("good", endpoint=serve_metrics(metrics))
    make_run("gone", endpoint="http://127.0.0.1:9/metrics")
    make_run("evil", endpoint="file:///etc/passwd")
    scraper = make_scraper()
    scraper.scrape_once()
    scraper.scrape_once()
    assert store.latest("good", "stallwatch_step") == {(None, ""): 5.0}
    by_run = {status.run: status for status in scraper.status()}
    assert (by_run["gone"].scrapes, by_run["gone"].failures) == (2, 2)
    assert by_run["gone"].error and by_run["gone"].error.id == "dashboard.source_no_answer"
    assert by_run["evil"].failures == 2
    assert by_run["good"].failures == 0 and by_run["good"].error is None


def test_reused_port_is_a_separate_source(
    make_run: MakeRun, make_scraper: Callable[..., Scraper], clock: Clock
) -> None:
    metrics = {name: generate_latest(RunMetrics(name).registry).decode() for name in ("first", "second")}
    answers = "first"
    scraper = make_scraper(get=lambda *_: metrics[answers])
    make_run("first", endpoint="http://127.0.0.1:19400/metrics")
    scraper.scrape_once()
    clock.now += 30
    answers = "second"
    make_run("second", now=NOW + 30, endpoint="http://127.0.0.1:19400/metrics")
    scraper.scrape_once()
    by_run = {status.run: status for status in scraper.status()}
    assert (by_run["first"].answered, by_run["first"].scrapes) == (NOW, 1)
    assert by_run["first"].error == message("dashboard.source_address_reused")
    assert (by_run["second"].answered, by_run["second"].scrapes) == (NOW + 30, 1)
    assert answered(scraper, "first") == NOW


def test_loopback_endpoint_of_another_host_is_reported_with_a_remedy(
    make_run: MakeRun, make_scraper: Callable[..., Scraper]
) -> None:
    def get(*_: str) -> str:
        raise ScrapeError("source_no_answer", reason="refused")

    make_run("far", host="n1", endpoint="http://127.0.0.1:19400/metrics")
    make_run("near", endpoint="http://127.0.0.1:19401/metrics")
    make_run("open", host="n1", endpoint="http://n1:19400/metrics")
    make_run("everywhere", host="n2", endpoint="http://127.0.0.1:19400/metrics", everywhere=True)
    scraper = make_scraper(get=get)
    scraper.scrape_once()
    assert {status.url for status in scraper.status() if status.run == "everywhere"} == {
        "http://n2:19400/metrics"
    }
    why = message("dashboard.source_no_answer", reason="refused")
    assert {status.run: status.error for status in scraper.status()} == {
        "far": message("dashboard.source_of_other_host", reason=why, host="n1"),
        "near": why,
        "open": why,
        "everywhere": why,
    }


def test_hosts_of_one_run_can_have_equal_loopback_endpoints(
    make_run: MakeRun, make_scraper: Callable[..., Scraper]
) -> None:
    page = generate_latest(RunMetrics("sft").registry).decode()
    seen = []

    def get(*_: str) -> str:
        seen.append([status.error for status in scraper.status()])
        return page

    for name in ("sft+n1", "sft+n2"):
        make_run(name, run="sft", key="5f3a", endpoint="http://127.0.0.1:19400/metrics")
    scraper = make_scraper(get=get)
    scraper.scrape_once()
    scraper.scrape_once()
    assert seen == [[None], [None]]  # no round sends another agent's credentials


def test_recovered_endpoint_is_no_longer_failing(
    make_run: MakeRun, make_scraper: Callable[..., Scraper], store: MetricStore
) -> None:
    make_run("grpo", endpoint="http://127.0.0.1:1/metrics")
    answers = ["<html>", 'stallwatch_step{run="grpo"} 7\n']
    scraper = make_scraper(get=lambda *_: answers.pop(0))
    scraper.scrape_once()
    assert scraper.status()[0].error and answered(scraper, "grpo") is None
    scraper.scrape_once()
    assert scraper.status()[0].error is None and answered(scraper, "grpo") == NOW


def test_port_of_another_run_is_not_accepted(
    make_run: MakeRun, serve_metrics: Serve, make_scraper: Callable[..., Scraper], store: MetricStore
) -> None:
    metrics = RunMetrics("new")
    metrics.progress(5, None)
    make_run("old", endpoint=serve_metrics(metrics))
    scraper = make_scraper()
    scraper.scrape_once()
    assert answered(scraper, "old") is None
    assert store.last_seen() == {}


def test_ended_run_is_not_scraped(
    make_run: MakeRun, make_scraper: Callable[..., Scraper], clock: Clock
) -> None:
    asked: list[str] = []
    make_run("done", endpoint="http://127.0.0.1:1/metrics", ended_at=NOW - 1, state="finished")

    def get(url: str, _authorization: str) -> str:
        asked.append(url)
        raise ScrapeError("gone")

    scraper = make_scraper(get=get)
    scraper.scrape_once()  # the endpoint may still serve the last values
    clock.now += 60
    scraper.scrape_once()
    assert len(asked) == 1


def test_targets_of_other_hosts_are_scraped(
    serve_metrics: Serve, make_run: MakeRun, make_scraper: Callable[..., Scraper], store: MetricStore
) -> None:
    metrics = RunMetrics("far")
    metrics.progress(3, None)
    target = serve_metrics(metrics).removeprefix("http://").removesuffix("/metrics")
    sent: dict[str, dict[str, str]] = {}

    def get(url: str, headers: Mapping[str, str]) -> str:
        sent[url] = dict(headers)
        return fetch(url, headers)

    make_run("near", endpoint="http://127.0.0.1:9/metrics")
    scraper = make_scraper(targets=(target, "ssh://nonsense"), get=get)
    scraper.scrape_once()
    # An agent waits until the end of its run is read, unless the dashboard reads the end from the folder.
    assert sent == {f"http://{target}/metrics": {DASHBOARD_HEADER: "1"}, "http://127.0.0.1:9/metrics": {}}
    assert store.latest("far", "stallwatch_step") == {(None, ""): 3.0}
    assert [status.error for status in scraper.status() if "nonsense" in status.url] == [
        message("dashboard.source_target_not_http", target="ssh://nonsense")
    ]


def test_hanging_endpoint_does_not_delay_others(
    make_run: MakeRun, make_scraper: Callable[..., Scraper], store: MetricStore, clock: Clock
) -> None:
    """An endpoint with a pending request gets no second one, and all others are scraped in every round."""
    release = threading.Event()
    asked: list[str] = []

    def get(url: str, _authorization: str) -> str:
        asked.append(url)
        if "slow" in url:
            release.wait(120)
            raise ScrapeError("gone")
        return f'stallwatch_step{{run="quick"}} {len(asked)}\n'

    make_run("slow", endpoint="http://slow/metrics")
    make_run("quick", endpoint="http://quick/metrics")
    scraper = make_scraper(get=get, every=0.05)
    try:
        scraper.scrape_once()
        clock.now += 1
        scraper.scrape_once()
        assert asked.count("http://slow/metrics") == 1
        assert asked.count("http://quick/metrics") == 2
        assert len(store.series("quick", "stallwatch_step")) == 2
    finally:
        release.set()


def test_old_points_are_pruned(
    make_run: MakeRun, make_scraper: Callable[..., Scraper], store: MetricStore, clock: Clock
) -> None:
    make_run("grpo", endpoint="http://x/metrics")
    scraper = make_scraper(get=lambda *_: f'stallwatch_step{{run="grpo"}} {clock.now}\n', keep_days=1)
    scraper.scrape_once()
    clock.now += 2 * 86400
    scraper.scrape_once()
    assert list(store.series("grpo", "stallwatch_step")["t"]) == [clock.now]


def test_write_errors_are_reported_and_scraping_continues(
    make_run: MakeRun, make_scraper: Callable[..., Scraper], store: MetricStore
) -> None:
    make_run("grpo", endpoint="http://x/metrics")
    scraper = make_scraper(get=lambda *_: 'stallwatch_step{run="grpo"} 1\n')
    store.close()
    scraper.scrape_once()
    assert has(store.problem, "dashboard.numbers_not_kept")


def test_thread_scrapes_until_it_is_closed(make_run: MakeRun, make_scraper: Callable[..., Scraper]) -> None:
    make_run("grpo", endpoint="http://x/metrics")
    rounds = threading.Semaphore(0)
    others = set(threading.enumerate())  # pages of another test may still scrape in this process

    def get(url: str, _authorization: str) -> str:
        rounds.release()
        raise ScrapeError("gone")

    scraper = make_scraper(get=get, every=0.01)
    scraper.start()
    for _ in range(3):
        assert rounds.acquire(timeout=120)
    scraper.close()
    assert not [thread for thread in set(threading.enumerate()) - others if thread.name == "scraper"]


def test_source_with_a_future_timestamp_is_late() -> None:
    """The clock was set back, so the age of the answer is unknown."""
    status = TargetStatus("http://127.0.0.1:1/metrics", None, answered=10_000.0)
    assert state_of(status, 10_001.0) == "answers"
    assert state_of(status, 10_000.0 - 7200.0) == "late"
