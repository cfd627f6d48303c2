"""Read the metrics of all runs from a Prometheus server."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from stallwatch_alerts.prometheus.clients import Prometheus
from stallwatch_dashboard.data import cache
from stallwatch_dashboard.data.frames import Key, Which, fold, host_of, series_order
from stallwatch_dashboard.data.metrics_page import IDENTITY, PREFIX, agent_of, series_of
from stallwatch_dashboard.data.overview import Numbers
from stallwatch_dashboard.data.promql import (
    Points,
    Questions,
    Ranges,
    Remembered,
    among,
    is_run,
    newest,
    portions,
    selector,
)
from stallwatch_dashboard.data.summaries import MEMORY, METRICS, MOST_LOSSES, Latest, summary_of, trend_of
from stallwatch_rules.messages import Text

Every = dict[str, dict[str, dict[Which, float]]]  #: newest values by run and metric


def frame(series: Mapping[Key, list[Points]]) -> pd.DataFrame:
    """Return the points as a frame, sorted by rank, labels, and time. Points without a rank are last.

    If a series has several points at the same time, only the last point is kept.
    """
    order = sorted(series, key=series_order)
    parts = [
        cache.Points(np.full(len(times), place), times, values)
        for place, key in enumerate(order)
        for times, values in series[key]
    ]
    return cache.series_frame(order, cache.joined(cache.of_rows(()), *parts))


def _key(labels: Mapping[str, str], agents: Mapping[str, str]) -> Key:
    return (*series_of(labels), agents.get(labels.get("instance", ""), ""))


def by_metric(samples: list[Any]) -> Every:
    found: Every = defaultdict(lambda: defaultdict(dict))
    for sample in samples:
        labels = sample["metric"]
        name = labels["__name__"].removeprefix(PREFIX)
        found[labels.get("run", "")][name][series_of(labels)] = float(sample["value"][1])
    return found


def trends(
    losses: dict[str, dict[float, float]],
    sums: dict[str, dict[float, float]],
    counts: dict[str, dict[float, float]],
) -> dict[str, Numbers]:
    """Return each run's trends, based on the history of its losses, step durations, and step counts."""
    found = {}
    for run in losses.keys() | sums.keys():
        counted = counts.get(run, {})
        steps = [(seconds, counted[at]) for at, seconds in sums.get(run, {}).items() if at in counted]
        times = [*losses.get(run, {}), *sums.get(run, {})]
        trend = trend_of(losses.get(run, {}).values(), steps)
        found[run] = replace(trend, started_at=min(times, default=None))
    return found


PRESENT = "stallwatch_log_lines_total"  #: every agent reports this metric from the start
DAY = 86400.0
HISTORY_SECONDS = 60.0  #: seconds to cache past values


class Departed:
    """Finds the last values of runs that Prometheus no longer scrapes. This class is thread-safe.

    Times are Unix timestamps in seconds.
    """

    def __init__(self, questions: Questions, clock: Callable[[], float]) -> None:
        self._questions = questions
        self._clock = clock
        self._day = Remembered[set[str]](clock, HISTORY_SECONDS)  # the runs of the last day
        self._seen: dict[str, float] = {}  # time of each run's last sign of life
        # Exact time of the last sign of life, by run and by the approximate time from the coarse query.
        self._exact: dict[tuple[str, float], float] = {}
        self._ended: dict[tuple[str, float | None], Latest] = {}  # last values, by run and last sign of life

    def last_seen(self) -> dict[str, float]:
        """For each run of the last day, return the time of the run's last sign of life.

        The query for runs that are still scraped is repeated on every call.
        """
        day = None
        if self._day.get("") is None:
            query = f"group by (run) (last_over_time({PRESENT}[1d]))"
            day = self._questions.executor.submit(self._questions.instant, query)
        now = {
            sample["metric"].get("run", ""): float(sample["value"][1])
            for sample in self._questions.instant(f"max by (run) (timestamp({PRESENT}))")
        }
        seen = self._seen
        if day is not None and (found := day.result()):
            names = self._day.keep("", {sample["metric"].get("run", "") for sample in found})
            gone = self._when_gone(sorted(names - now.keys() - {""}))
            seen = {run: at for run, at in seen.items() if run in names}
            seen |= {run: max(at, seen.get(run, at)) for run, at in gone.items()}
        self._seen = {**seen, **now}
        return {run: at for run, at in self._seen.items() if run}

    def numbers(self, runs: Collection[str], there: Collection[str]) -> dict[str, Latest]:
        """Return the last known values of `runs`. Omit runs in `there`, because they are still scraped."""
        wanted = {run: (run, self._seen.get(run)) for run in runs if run not in there}
        known = {
            key: latest
            for key, latest in self._ended.items()
            if (wanted[key[0]] == key if key[0] in wanted else key[0] in self._seen)
        }
        for some in portions([run for run, key in wanted.items() if key not in known]):
            answer = by_metric(self._questions.instant(newest(METRICS, among(some), "[1d]")))
            known |= {wanted[run]: answer[run] for run in some if run in answer}
        self._ended = known
        return {run: known[key] for run, key in wanted.items() if key in known}

    def _when_gone(self, runs: list[str]) -> dict[str, float]:
        """For each of these runs, which are no longer scraped, return the time of its last sign of life.

        One coarse query and one exact query for each run are faster than a single query for the times of all
        values of a day. That single query takes 9 ms per run in Prometheus 2.42.
        """
        now, last = self._clock(), dict[str, float]()
        start = (now - DAY) // _GRID_SECONDS * _GRID_SECONDS
        for some in portions(runs):
            query = f"max by (run) ({PRESENT}{{{among(some)}}})"
            for series in self._questions.moments(query, start, now, _GRID_SECONDS) or []:
                last[series["metric"].get("run", "")] = float(series["values"][-1][0])

        def when(run: str) -> float | None:
            answer = self._questions.instant(f"max(timestamp({PRESENT}{{{is_run(run)}}}))", last[run])
            return float(answer[0]["value"][1]) if answer else None

        known = {key: self._exact[key] for key in last.items() if key in self._exact}
        unknown = [run for run, moment in last.items() if (run, moment) not in known]
        found = zip(unknown, self._questions.executor.map(when, unknown), strict=True)
        self._exact = known | {(run, last[run]): at for run, at in found if at is not None}
        return {run: self._exact.get((run, moment), moment) for run, moment in last.items()}


_GRID_SECONDS = 290.0  #: less than the five minutes for which Prometheus still returns an old value
_LOOK_BACK = 30 * DAY  #: maximum age, in seconds, at which the beginning of a run can be found
_MEMORY_SECONDS = 10.0  #: seconds to cache the memory of all ranks, which is the largest result
_SAME_SECONDS = 0.5  #: a page's queries within this many seconds share a result
_TREND_POINTS = 60
_FEW_POINTS, _MANY_POINTS = 400, 120  #: points per line in charts: few lines, and a line for each rank
_NOW = tuple(name for name in METRICS if name not in MEMORY)
#: Metrics that a Run page draws without a line for each rank. A single query reads all of them.
_TOGETHER = (
    "step",
    "loss",
    "grad_norm",
    "learning_rate",
    "host_memory_bytes",
    "step_duration_seconds_sum",
    "step_duration_seconds_count",
    "stall_threshold_seconds",
    "trace_cache_invalidations_total",
    "warnings_total",
    "phase",
)
_OF_RANKS = (*MEMORY, "rank_step")
_LATEST = (*_TOGETHER, *_OF_RANKS, "last_step_timestamp_seconds", "target_steps")


class PrometheusStore:
    """Reads metrics from a Prometheus server and caches past values."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        self._server = Prometheus(url)
        self._clock = clock
        self._lock = threading.Lock()
        self._questions = Questions(self._server, clock)
        self._departed = Departed(self._questions, clock)
        self._ranges = Ranges(self._questions.moments)
        self._first: dict[str, float] = {}
        # The key of each cache is the queried run; "" is the key for all runs.
        self._trends = Remembered[dict[str, Numbers]](clock, HISTORY_SECONDS)
        self._memory = Remembered[Every](clock, _MEMORY_SECONDS)
        self._moment = Remembered[list[Any]](clock, _SAME_SECONDS)
        self._agents = Remembered[dict[str, str]](clock, HISTORY_SECONDS)

    @property
    def problem(self) -> Text | None:
        return self._questions.problem

    def series(self, run: str, metric: str, *, points: int = 1200) -> pd.DataFrame:
        """Return a metric of a run at evenly spaced times and at the current time."""
        now = self._clock()
        start = self.first_seen(run)
        if start is None:
            return frame({})
        name = metric.removeprefix(PREFIX)
        moments = _MANY_POINTS if points > 1200 or name in _OF_RANKS else _FEW_POINTS
        query = selector(_TOGETHER if name in _TOGETHER else (name,), is_run(run))
        found: dict[Key, list[Points]] = defaultdict(list)
        agents = self._agents_of(run)
        for pairs, values in self._ranges.points(query, start, now, moments).items():
            labels = dict(pairs)
            if labels.get("__name__") == metric:
                found[_key(labels, agents)].append(values)  # several series if an agent was restarted
        for sample in self._now(run, metric):  # the evenly spaced times end before the current time
            at, value = sample["value"]
            found[_key(sample["metric"], agents)].append((np.array([float(at)]), np.array([float(value)])))
        return frame(found)

    def latest(self, run: str, metric: str) -> dict[Which, float]:
        found = self._now(run, metric)
        # If there is no newest value, the run is no longer scraped.
        found = found or self._questions.instant(f"last_over_time({metric}{{{is_run(run)}}}[1d])")
        values: dict[Which, list[float]] = defaultdict(list)
        for sample in found:
            values[series_of(sample["metric"])].append(float(sample["value"][1]))
        return {which: fold(metric, reported) for which, reported in values.items()}

    def hosts(self, run: str) -> dict[str, float]:
        agents, found = self._agents_of(run), dict[str, float]()
        query = f"timestamp(last_over_time({PRESENT}{{{is_run(run)}}}[1d]))" if agents else ""
        for sample in self._questions.instant(query) if query else ():
            if agent := agents.get(sample["metric"].get("instance", "")):
                seen = float(sample["value"][1])
                found[host_of(agent)] = max(seen, found.get(host_of(agent), seen))
        return found

    def _agents_of(self, run: str) -> dict[str, str]:
        """Return the agents of a multi-agent run, keyed by the value of the Prometheus label ``instance``."""
        if (known := self._agents.get(run)) is not None:
            return known
        found: dict[str, str] = {}
        query = f'last_over_time({IDENTITY}{{job_id!="",{is_run(run)}}}[1d])'
        for sample in self._questions.instant(query):
            instance = sample["metric"].get("instance", "")
            found[instance] = agent_of(sample["metric"], instance.rpartition(":")[2])
        return self._agents.keep(run, found)

    def summaries(self, runs: Iterable[str], now: float) -> dict[str, Numbers]:
        """Return the current values and the trends of runs. Trends are updated once a minute.

        For a single run, query only that run.
        """
        runs = list(runs)
        wanted = is_run(runs[0]) if len(runs) == 1 else ""
        trends = self._all_trends(wanted)
        every = self._all_latest(wanted)
        ended = self._departed.numbers(runs, every.keys())
        past = trends()
        return {
            run: summary_of(every.get(run) or ended.get(run, {}), past.get(run, Numbers()), now=now)
            for run in runs
        }

    def last_seen(self) -> dict[str, float]:
        return self._departed.last_seen()

    def first_seen(self, run: str) -> float | None:
        """Return the time of the run's first value, found by three increasingly fine queries."""
        with self._lock:
            if run in self._first:
                return self._first[run]
        now = self._clock()
        start, span, found = now - _LOOK_BACK, _LOOK_BACK, None
        for _ in range(3):
            answer = self._questions.span(f"{PRESENT}{{{is_run(run)}}}", start, min(now, start + span), 1000)
            times = [float(sample["values"][0][0]) for sample in answer if sample["values"]]
            if not times:
                break
            found = min(times)
            span = span / 1000
            start = found - span
        if found is not None:
            with self._lock:
                self._first[run] = found
        return found

    def close(self) -> None:
        self._questions.close()

    def _all_latest(self, wanted: str) -> Every:
        """Return the newest values by run and metric. `wanted` selects a single run; "" selects all runs."""
        memory = None if wanted else self._memory.get("")
        pending = (
            self._questions.executor.submit(self._questions.instant, newest(MEMORY, wanted))
            if memory is None
            else None
        )
        found = by_metric(self._questions.instant(newest(_NOW, wanted)))
        if pending is not None:
            memory = by_metric(pending.result())
            if not wanted:
                self._memory.keep("", memory)
        return {run: {**(memory or {}).get(run, {}), **newest_values} for run, newest_values in found.items()}

    def _all_trends(self, wanted: str) -> Callable[[], dict[str, Numbers]]:
        """Start the queries for the trends and return a function that waits for the results."""
        for known in (self._trends.get(""), self._trends.get(wanted)):
            if known is not None:
                return lambda kept=known: kept  # type: ignore[misc]
        now = self._clock()
        losses, sums, counts = (
            self._questions.executor.submit(
                self._questions.by_run, f"{fold} by (run) ({PREFIX}{name}{{{wanted}}})", now - DAY, now, many
            )
            for fold, name, many in (
                ("min", "loss", 2 * MOST_LOSSES),
                ("max", "step_duration_seconds_sum", _TREND_POINTS),
                ("max", "step_duration_seconds_count", _TREND_POINTS),
            )
        )
        return lambda: self._trends.keep(wanted, trends(losses.result(), sums.result(), counts.result()))

    def _now(self, run: str, metric: str) -> list[Any]:
        """Return the newest values of one metric.

        A single query reads all metrics that a page shows, and its result is cached.
        """
        if metric.removeprefix(PREFIX) not in _LATEST:
            return self._questions.instant(f"{metric}{{{is_run(run)}}}")
        answer = self._moment.get(run)
        if answer is None:
            answer = self._moment.keep(run, self._questions.instant(selector(_LATEST, is_run(run))))
        return [sample for sample in answer if sample["metric"].get("__name__") == metric]
