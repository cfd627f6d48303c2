"""Runs that appear, disappear and return, with and without a viewer of the dashboard."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from stallwatch_alerts.prometheus.clients import NoAnswer
from stallwatch_dashboard.data.prometheus import PrometheusStore
from stallwatch_rules.locale import render

STALE = 30.0  #: seconds after a scrape; a real server returns a value for up to 300


class Server:
    """Prometheus server that answers a store's queries from scrapes at known times."""

    def __init__(self) -> None:
        self.now = 100_000.0
        self.scrapes: dict[str, dict[float, float]] = {}
        self.asked: list[str] = []
        self.silent = ""  #: queries with this text get no answer

    def store(self) -> PrometheusStore:
        made = PrometheusStore("http://127.0.0.1:9", clock=lambda: self.now)
        made._server.get = self.get  # type: ignore[method-assign]
        return made

    def scrape(self, run: str, since: float, until: float, step: float) -> None:
        """Scrape every 15 seconds; the step is `step` at the end, and one less before."""
        times = [since + 15.0 * n for n in range(int((until - since) // 15) + 1)]
        self.scrapes.setdefault(run, {}).update({at: step - (at != times[-1]) for at in times})

    def get(self, path: str, **query: str) -> Any:
        question = query["query"]
        self.asked.append(question)
        if self.silent and self.silent in question:
            raise NoAnswer("too slow")
        named = re.search(r'run=~?("(?:[^"\\]|\\.)*")', question)
        runs = [run for run in self.scrapes if not named or re.fullmatch(json.loads(named[1]), run)]
        if "query_range" in path:
            start, end, width = (float(query[name]) for name in ("start", "end", "step"))
            moments = [start + n * width for n in range(int((end - start) // width) + 1)]
            given = {
                run: [[at, "1"] for at in moments if self._newest(run, at, 300.0) is not None] for run in runs
            }
            return answer([{"metric": {"run": run}, "values": values} for run, values in given.items()])
        at = float(query["time"])
        back = 86400.0 if "[1d]" in question else 300.0 if "max(" in question else STALE
        found = []
        for run in runs:
            if (last := self._newest(run, at, back)) is not None:
                value = last if "timestamp(" in question else self.scrapes[run][last]
                metric = {"run": run, "__name__": "stallwatch_step"}
                found.append({"metric": metric, "value": [at, str(value)]})
        return answer(found)

    def _newest(self, run: str, at: float, back: float) -> float | None:
        return max((scrape for scrape in self.scrapes[run] if at - back < scrape <= at), default=None)


def answer(found: list[Any]) -> Any:
    return {"data": {"result": found}}


@pytest.fixture
def server() -> Server:
    return Server()


def test_end_of_a_run_is_known_without_a_viewer(server: Server) -> None:
    server.scrape("a", 95_000, 112_000, 999)
    server.now = 100_000.0
    store = server.store()
    assert store.last_seen() == {"a": 99_995.0}
    server.now = 130_000.0
    ended = max(server.scrapes["a"])
    assert store.last_seen() == {"a": ended} == server.store().last_seen()
    server.scrape("a", 135_000, 140_000, 1999)  # the run returns once more
    server.now = 150_000.0
    assert store.last_seen() == {"a": max(server.scrapes["a"])} == server.store().last_seen()
    assert store.summaries(["a"], server.now)["a"].step == 1999


def test_end_of_a_run_is_queried_once(server: Server) -> None:
    server.scrape("a", 95_000, 100_010, 999)
    store = server.store()
    for _ in range(20):
        server.now += 20.0
        store.last_seen()
        assert store.summaries(["a"], server.now)["a"].step == 999
    assert store.last_seen() == {"a": max(server.scrapes["a"])}
    assert sum(question.startswith("max(timestamp(") for question in server.asked) == 1
    assert sum("__name__" in question and "[1d]" in question for question in server.asked) == 1


@pytest.mark.parametrize("before", [7.0, None])
def test_returned_run_has_its_last_numbers_after_its_end(server: Server, before: float | None) -> None:
    """The run missed a scrape, or was listed before its first scrape."""
    if before is not None:
        server.scrape("a", 99_000, 99_900, before)
    store = server.store()
    store.last_seen()
    assert store.summaries(["a"], server.now)["a"].step == before
    server.scrape("a", 100_010, 100_110, 999)
    for _ in range(12):  # the dashboard is viewed all the time
        server.now += 20.0
        store.last_seen()
        found = store.summaries(["a"], server.now)["a"]
    assert found.step == 999 and store.last_seen() == {"a": max(server.scrapes["a"])}


def test_answer_does_not_hide_that_another_question_has_none(server: Server) -> None:
    server.scrape("a", 99_000, 100_000, 7)
    store, server.silent = server.store(), "stallwatch_loss{"
    store.summaries(["a"], server.now)
    store.last_seen()
    assert "too slow" in render(store.problem or "")
    server.silent = ""
    store.last_seen()
    assert store.problem is not None
    server.now += 61.0  # the past is queried again
    store.summaries(["a"], server.now)
    assert store.problem is None


def test_problem_of_an_unrepeated_query_is_dropped(server: Server) -> None:
    store, server.silent = server.store(), "stallwatch_"
    store.latest("a", "stallwatch_step")
    assert store.problem is not None
    server.now += 91.0
    assert store.problem is None
