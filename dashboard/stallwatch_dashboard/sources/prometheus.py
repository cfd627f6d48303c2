"""The numbers of all runs from a Prometheus, or whatever speaks its API, asked as the embedded store is."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd

from stallwatch_alerts.prometheus.asking import NoAnswer, Prometheus
from stallwatch_dashboard.overview import Numbers
from stallwatch_dashboard.sources.glances import METRICS, Latest, Which, glance
from stallwatch_dashboard.sources.promql import MOST_NAMES, PREFIX, among, is_run, newest, portions, selector
from stallwatch_dashboard.sources.pulses import MOST_LOSSES, Pulse, pulse_of
from stallwatch_dashboard.sources.ranges import Points, Ranges

_DAY = 86400.0
_LOOK_BACK = 30 * _DAY  #: how far a run's beginning is looked for
_HISTORY_SECONDS = 60.0  #: how long what is asked of the past stays true enough
_MEMORY_SECONDS = 10.0  #: and the memory of all ranks of all runs, most of what there is to look through
_SAME_SECONDS = 0.5  #: within which a page's questions are of one moment
_PULSE_POINTS = 60
_FEW_POINTS, _MANY_POINTS = 400, 120  #: moments of a chart; and of one that has a series a rank
_AT_ONCE = 4  #: questions: a server of two processors is not asked more
_PRESENT = "stallwatch_log_lines_total"  #: every agent has it from its first moment on
_OWN = ("__name__", "run", "rank", "instance", "job")
_Every = dict[str, dict[str, dict[Which, float]]]  # newest values by run and metric
_MEMORY = tuple(name for name in METRICS if re.fullmatch(r"memory_\w+_bytes", name))
_NOW = tuple(name for name in METRICS if name not in _MEMORY)
#: What a Run page draws without a line a rank: asked for with one question.
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
_OF_RANKS = (*_MEMORY, "rank_step")
_LATEST = (*_TOGETHER, *_OF_RANKS, "last_step_timestamp_seconds", "target_steps")


class PrometheusStore:
    """Asks, for what is past once. A server that is gone is told on the page."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        self.problem: str | None = None
        self._server = Prometheus(url)
        self._clock = clock
        self._lock = threading.Lock()
        self._askers = ThreadPoolExecutor(_AT_ONCE, "prometheus")
        self._ranges = Ranges(self._moments)
        self._first: dict[str, float] = {}
        self._past = -math.inf  # when the runs of the last day were asked for
        self._seen: dict[str, float] = {}
        self._pulses: dict[str, tuple[float, dict[str, Pulse]]] = {}  # by what was asked: one run, or ""
        self._memory: tuple[float, _Every] = (-math.inf, {})
        self._moment: dict[str, tuple[float, list[Any]]] = {}  # the newest numbers of the runs looked at
        self._ended: dict[str, Latest] = {}  # the last numbers of runs that are no longer scraped

    def series(
        self, run: str, metric: str, *, since: float | None = None, points: int = 1200
    ) -> pd.DataFrame:
        """One metric of one run, at moments evenly apart, and now."""
        now = self._clock()
        start = since if since is not None else self.first_seen(run)
        if start is None:
            return _frame({})
        name = metric.removeprefix(PREFIX)
        moments = _MANY_POINTS if points > 1200 or name in _OF_RANKS else _FEW_POINTS
        question = selector(_TOGETHER if name in _TOGETHER else (name,), is_run(run))
        found: dict[Which, list[Points]] = defaultdict(list)
        for told, values in self._ranges.points(question, start, now, moments).items():
            labels = dict(told)
            if labels.get("__name__") == metric:
                found[_which(labels)].append(values)  # of an agent that was started again there are several
        for one in self._now(run, metric):  # moments lie apart, and the last one before now
            at, value = one["value"]
            found[_which(one["metric"])].append((np.array([float(at)]), np.array([float(value)])))
        return _frame(found)

    def latest(self, run: str, metric: str) -> dict[Which, float]:
        """The newest value of every series of one metric, also of a run that is no longer scraped."""
        found = self._now(run, metric)
        found = found or self._instant(f"last_over_time({metric}{{{is_run(run)}}}[1d])")
        return {_which(one["metric"]): float(one["value"][1]) for one in found}

    def glances(self, runs: Iterable[str], now: float) -> dict[str, Numbers]:
        """What is now, what is past once a minute; of one run, of that one alone."""
        runs = list(runs)
        wanted = is_run(runs[0]) if len(runs) == 1 else ""
        pulses = self._all_pulses(wanted)
        every = self._all_latest(wanted)
        self._take_last_words([run for run in runs if run not in every])
        history = pulses()
        return {
            run: glance(every.get(run) or self._ended.get(run, {}), history.get(run, Pulse()), now=now)
            for run in runs
        }

    def last_seen(self) -> dict[str, float]:
        """Of the runs of the last day; those under way are asked for each time."""
        day = None
        if self._clock() - self._past > _HISTORY_SECONDS:
            day = self._askers.submit(self._instant, f"group by (run) (last_over_time({_PRESENT}[1d]))")
        now = {
            one["metric"].get("run", ""): float(one["value"][1])
            for one in self._instant(f"max by (run) (timestamp({_PRESENT}))")
        }
        with self._lock:
            seen = self._seen = {**self._seen, **now}
        if day is not None and (told := day.result()):
            names = {one["metric"].get("run", "") for one in told}
            gone = self._when_gone(sorted(names - seen.keys() - {""}))
            with self._lock:
                kept = {run: at for run, at in self._seen.items() if run in names or run in now}
                seen = self._seen = {**gone, **kept}
                self._past = self._clock()
        return {run: at for run, at in seen.items() if run}

    def first_seen(self, run: str) -> float | None:
        """Found by looking closer twice; then remembered."""
        with self._lock:
            if run in self._first:
                return self._first[run]
        now = self._clock()
        start, span, found = now - _LOOK_BACK, _LOOK_BACK, None
        for _ in range(3):
            told = self._range(f"{_PRESENT}{{{is_run(run)}}}", start, min(now, start + span), 1000)
            times = [float(one["values"][0][0]) for one in told if one["values"]]
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
        """Ask no more."""
        self._askers.shutdown(wait=False, cancel_futures=True)

    def _when_gone(self, runs: list[str]) -> dict[str, float]:
        """The last sign of each of these runs, which are scraped no more.

        In two steps: to ask for the time of each number of a whole day takes Prometheus 9 ms a run (2.42).
        """
        now, found = self._clock(), {}
        for some in portions(runs):
            question = f"max by (run) ({_PRESENT}{{{among(some)}}})"
            found.update(self._by_run(question, now - _DAY, now, int(_DAY / 290)))
        last = {run: max(moments) for run, moments in found.items() if moments}

        def when(run: str) -> float:
            told = self._instant(f"max(timestamp({_PRESENT}{{{is_run(run)}}}))", last[run])
            return float(told[0]["value"][1]) if told else last[run]

        return dict(zip(last, self._askers.map(when, last), strict=True))

    def _all_latest(self, wanted: str) -> _Every:
        """Newest values by run and metric; `wanted` leaves all runs but one out."""
        at, memory = self._memory
        fresh = bool(wanted) or not 0 <= self._clock() - at <= _MEMORY_SECONDS
        asked = self._askers.submit(self._instant, newest(_MEMORY, wanted)) if fresh else None
        found = _by_metric(self._instant(newest(_NOW, wanted)))
        if asked is not None:
            memory = _by_metric(asked.result())
            if not wanted:
                self._memory = (self._clock(), memory)
        return {run: {**memory.get(run, {}), **told} for run, told in found.items()}

    def _take_last_words(self, runs: list[str]) -> None:
        """Of runs that are no longer scraped, each asked for once."""
        for some in portions([run for run in runs if run not in self._ended]):
            if (answer := self._answer(newest(METRICS, among(some), "[1d]"))) is not None:
                told = _by_metric(answer)
                self._ended.update({run: told.get(run, {}) for run in some})

    def _all_pulses(self, wanted: str) -> Callable[[], dict[str, Pulse]]:
        """Ask for them; what this gives waits for the answers."""
        now = self._clock()
        asked, known = self._pulses.get("", (-math.inf, {}))
        if wanted and not 0 <= now - asked <= _HISTORY_SECONDS:
            asked, known = self._pulses.get(wanted, (-math.inf, {}))
        if 0 <= now - asked <= _HISTORY_SECONDS:
            return lambda: known
        losses, sums, counts = (
            self._askers.submit(
                self._by_run, f"{fold} by (run) ({PREFIX}{name}{{{wanted}}})", now - _DAY, now, many
            )
            for fold, name, many in (
                ("min", "loss", 2 * MOST_LOSSES),
                ("max", "step_duration_seconds_sum", _PULSE_POINTS),
                ("max", "step_duration_seconds_count", _PULSE_POINTS),
            )
        )

        def answered() -> dict[str, Pulse]:
            found = _pulses(losses.result(), sums.result(), counts.result())
            while len(self._pulses) > MOST_NAMES:
                self._pulses.pop(next(iter(self._pulses)), None)
            self._pulses[wanted] = (now, found)
            return found

        return answered

    def _now(self, run: str, metric: str) -> list[Any]:
        """The newest numbers of one metric; those of all that a page shows come with one question."""
        if metric.removeprefix(PREFIX) not in _LATEST:
            return self._instant(f"{metric}{{{is_run(run)}}}")
        at, told = self._moment.get(run, (-math.inf, []))
        if not 0 <= self._clock() - at < _SAME_SECONDS:
            at, told = self._clock(), self._instant(selector(_LATEST, is_run(run)))
            self._moment = {run: (at, told)}
        return [one for one in told if one["metric"].get("__name__") == metric]

    def _by_run(self, question: str, start: float, end: float, moments: int) -> dict[str, dict[float, float]]:
        return {
            one["metric"].get("run", ""): {float(at): float(value) for at, value in one["values"]}
            for one in self._range(question, start, end, moments)
        }

    def _instant(self, question: str, at: float | None = None) -> list[Any]:
        return self._answer(question, at) or []

    def _answer(self, question: str, at: float | None = None) -> list[Any] | None:
        """None without an answer."""
        return self._asked("/api/v1/query", query=question, time=f"{self._clock() if at is None else at:.3f}")

    def _range(self, question: str, start: float, end: float, moments: int) -> list[Any]:
        return self._moments(question, start, end, max(1.0, (end - start) / moments)) or []

    def _moments(self, question: str, start: float, end: float, width: float) -> list[Any] | None:
        return self._asked(
            "/api/v1/query_range",
            query=question,
            start=f"{start:.3f}",
            end=f"{end:.3f}",
            step=f"{width:.3f}",
        )

    def _asked(self, path: str, **query: str) -> list[Any] | None:
        try:
            found = list(self._server.get(path, **query)["data"]["result"])
        except (NoAnswer, KeyError, TypeError) as error:
            self.problem = f"Prometheus does not answer, so numbers are missing: {error}"
            return None
        self.problem = None
        return found


def _which(labels: dict[str, str]) -> Which:
    """Rank and remaining labels, written as the embedded store writes them."""
    rank = labels.get("rank", "")
    rest = {name: text for name, text in labels.items() if name not in _OWN}
    written = json.dumps(rest, sort_keys=True, ensure_ascii=False) if rest else ""
    return (int(rank) if rank.isdecimal() else None, written)


def _frame(told: Mapping[Which, list[Points]]) -> pd.DataFrame:
    """By rank, what has none last; then by labels and time, of two at one moment the last."""
    order = sorted(told, key=lambda which: (which[0] is None, which[0] or 0, which[1]))
    lines = []
    for which in order:
        times, values = (np.concatenate([part[n] for part in told[which]]) for n in (0, 1))
        by_time = np.argsort(times, kind="stable")
        by_time = by_time[np.diff(times[by_time], append=np.inf) > 0]  # now may be one of the moments
        lines.append((times[by_time], values[by_time]))
    many = [len(times) for times, _ in lines]
    ranks = np.repeat([-1 if rank is None else rank for rank, _ in order], many).astype("int64")
    labels = np.repeat(np.array([text for _, text in order], "object"), many)
    times, values = (np.concatenate([np.empty(0), *(line[n] for line in lines)]) for n in (0, 1))
    known = pd.arrays.IntegerArray(ranks, ranks < 0)
    return pd.DataFrame({"rank": known, "labels": labels, "t": times, "v": values})


def _by_metric(told: list[Any]) -> _Every:
    found: _Every = defaultdict(lambda: defaultdict(dict))
    for one in told:
        labels = one["metric"]
        name = labels["__name__"].removeprefix(PREFIX)
        found[labels.get("run", "")][name][_which(labels)] = float(one["value"][1])
    return found


def _pulses(
    losses: dict[str, dict[float, float]],
    sums: dict[str, dict[float, float]],
    counts: dict[str, dict[float, float]],
) -> dict[str, Pulse]:
    """Of each run, from its losses and the seconds and numbers of its steps, by their times."""
    found = {}
    for run in losses.keys() | sums.keys():
        counted = counts.get(run, {})
        steps = [(seconds, counted[at]) for at, seconds in sums.get(run, {}).items() if at in counted]
        times = [*losses.get(run, {}), *sums.get(run, {})]
        found[run] = pulse_of(losses.get(run, {}).values(), steps, min(times, default=None))
    return found
