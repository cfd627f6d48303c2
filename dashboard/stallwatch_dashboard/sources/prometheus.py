"""The numbers of all runs from a Prometheus, or whatever speaks its API, asked as the embedded store is."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from stallwatch_alerts.prometheus.asking import Prometheus
from stallwatch_dashboard.overview import Numbers
from stallwatch_dashboard.sources.answers import Every, by_metric, frame, pulses, which
from stallwatch_dashboard.sources.departed import DAY, HISTORY_SECONDS, PRESENT, Departed
from stallwatch_dashboard.sources.glances import METRICS, Which, glance
from stallwatch_dashboard.sources.promql import MOST_NAMES, PREFIX, is_run, newest, selector
from stallwatch_dashboard.sources.pulses import MOST_LOSSES, Pulse
from stallwatch_dashboard.sources.questions import Questions
from stallwatch_dashboard.sources.ranges import Points, Ranges

_LOOK_BACK = 30 * DAY  #: how far a run's beginning is looked for
_MEMORY_SECONDS = (
    10.0  #: how long the memory of all ranks is true enough, most of what there is to look through
)
_SAME_SECONDS = 0.5  #: within which a page's questions are of one moment
_PULSE_POINTS = 60
_FEW_POINTS, _MANY_POINTS = 400, 120  #: moments of a chart; and of one that has a series a rank
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
        self._server = Prometheus(url)
        self._clock = clock
        self._lock = threading.Lock()
        self._questions = Questions(self._server, clock)
        self._departed = Departed(self._questions, clock)
        self._ranges = Ranges(self._questions.moments)
        self._first: dict[str, float] = {}
        self._pulses: dict[str, tuple[float, dict[str, Pulse]]] = {}  # by what was asked: one run, or ""
        self._memory: tuple[float, Every] = (-math.inf, {})
        self._moment: dict[str, tuple[float, list[Any]]] = {}  # the newest numbers of the runs looked at

    @property
    def problem(self) -> str | None:
        """Why numbers are missing, for the page."""
        return self._questions.problem

    def series(
        self, run: str, metric: str, *, since: float | None = None, points: int = 1200
    ) -> pd.DataFrame:
        """One metric of one run, at moments evenly apart, and now."""
        now = self._clock()
        start = since if since is not None else self.first_seen(run)
        if start is None:
            return frame({})
        name = metric.removeprefix(PREFIX)
        moments = _MANY_POINTS if points > 1200 or name in _OF_RANKS else _FEW_POINTS
        question = selector(_TOGETHER if name in _TOGETHER else (name,), is_run(run))
        found: dict[Which, list[Points]] = defaultdict(list)
        for told, values in self._ranges.points(question, start, now, moments).items():
            labels = dict(told)
            if labels.get("__name__") == metric:
                found[which(labels)].append(values)  # of an agent that was started again there are several
        for one in self._now(run, metric):  # moments lie apart, and the last one before now
            at, value = one["value"]
            found[which(one["metric"])].append((np.array([float(at)]), np.array([float(value)])))
        return frame(found)

    def latest(self, run: str, metric: str) -> dict[Which, float]:
        """The newest value of every series of one metric, also of a run that is no longer scraped."""
        found = self._now(run, metric)
        found = found or self._questions.instant(f"last_over_time({metric}{{{is_run(run)}}}[1d])")
        return {which(one["metric"]): float(one["value"][1]) for one in found}

    def glances(self, runs: Iterable[str], now: float) -> dict[str, Numbers]:
        """What is now, what is past once a minute; of one run, of that one alone."""
        runs = list(runs)
        wanted = is_run(runs[0]) if len(runs) == 1 else ""
        history = self._all_pulses(wanted)
        every = self._all_latest(wanted)
        ended = self._departed.numbers(runs, every.keys())
        past = history()
        return {
            run: glance(every.get(run) or ended.get(run, {}), past.get(run, Pulse()), now=now) for run in runs
        }

    def last_seen(self) -> dict[str, float]:
        """Of the runs of the last day; those under way are asked for each time."""
        return self._departed.last_seen()

    def first_seen(self, run: str) -> float | None:
        """Found by looking closer twice; then remembered."""
        with self._lock:
            if run in self._first:
                return self._first[run]
        now = self._clock()
        start, span, found = now - _LOOK_BACK, _LOOK_BACK, None
        for _ in range(3):
            told = self._questions.span(f"{PRESENT}{{{is_run(run)}}}", start, min(now, start + span), 1000)
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
        self._questions.close()

    def _all_latest(self, wanted: str) -> Every:
        """Newest values by run and metric; `wanted` leaves all runs but one out."""
        at, memory = self._memory
        fresh = bool(wanted) or not 0 <= self._clock() - at <= _MEMORY_SECONDS
        asked = (
            self._questions.askers.submit(self._questions.instant, newest(_MEMORY, wanted)) if fresh else None
        )
        found = by_metric(self._questions.instant(newest(_NOW, wanted)))
        if asked is not None:
            memory = by_metric(asked.result())
            if not wanted:
                self._memory = (self._clock(), memory)
        return {run: {**memory.get(run, {}), **told} for run, told in found.items()}

    def _all_pulses(self, wanted: str) -> Callable[[], dict[str, Pulse]]:
        """Ask for them; what this gives waits for the answers."""
        now = self._clock()
        asked, known = self._pulses.get("", (-math.inf, {}))
        if wanted and not 0 <= now - asked <= HISTORY_SECONDS:
            asked, known = self._pulses.get(wanted, (-math.inf, {}))
        if 0 <= now - asked <= HISTORY_SECONDS:
            return lambda: known
        losses, sums, counts = (
            self._questions.askers.submit(
                self._questions.by_run, f"{fold} by (run) ({PREFIX}{name}{{{wanted}}})", now - DAY, now, many
            )
            for fold, name, many in (
                ("min", "loss", 2 * MOST_LOSSES),
                ("max", "step_duration_seconds_sum", _PULSE_POINTS),
                ("max", "step_duration_seconds_count", _PULSE_POINTS),
            )
        )

        def answered() -> dict[str, Pulse]:
            found = pulses(losses.result(), sums.result(), counts.result())
            while len(self._pulses) > MOST_NAMES:
                self._pulses.pop(next(iter(self._pulses)), None)
            self._pulses[wanted] = (now, found)
            return found

        return answered

    def _now(self, run: str, metric: str) -> list[Any]:
        """The newest numbers of one metric; those of all that a page shows come with one question."""
        if metric.removeprefix(PREFIX) not in _LATEST:
            return self._questions.instant(f"{metric}{{{is_run(run)}}}")
        at, told = self._moment.get(run, (-math.inf, []))
        if not 0 <= self._clock() - at < _SAME_SECONDS:
            at, told = self._clock(), self._questions.instant(selector(_LATEST, is_run(run)))
            self._moment = {run: (at, told)}
        return [one for one in told if one["metric"].get("__name__") == metric]
