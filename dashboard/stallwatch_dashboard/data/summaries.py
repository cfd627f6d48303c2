"""Summarize each run's history and compute the values for the run's row on the Runs page."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

import duckdb

from stallwatch_dashboard.data.frames import Which, series_order
from stallwatch_dashboard.data.metrics_page import Reading
from stallwatch_dashboard.data.overview import Numbers
from stallwatch_exporter.runs.run_state import ENDINGS

MOST_LOSSES = 40
#: Number of step intervals in the baseline. The very first interval is excluded, because it includes
#: compilation.
_BASELINE_STEPS = 20
_RECENT_STEPS = 5


@dataclass
class Trend:
    """A size-limited history of a run's losses and step times."""

    _losses: list[float] = field(default_factory=list)
    _stride: int = 1  #: a stride of n keeps every nth loss
    _skipped: int = 0
    _last_loss: float | None = None
    _counted: tuple[float, float] | None = None  #: seconds and steps at the last increase of the step count
    _early: list[float] = field(default_factory=list)
    _late: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))

    def loss(self, value: float) -> None:
        """Add the next loss. If there are too many losses, drop every second loss to preserve the curve."""
        if not math.isfinite(value):
            return
        self._last_loss = value
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self._losses.append(value)
        if len(self._losses) >= 2 * MOST_LOSSES:
            del self._losses[1::2]
            self._stride *= 2

    def steps(self, seconds: float, count: float) -> None:
        """Add the current sum and count of the histogram of step times. A restarted agent counts from 0."""
        before = self._counted
        if before is not None and count == before[1]:
            return
        self._counted = (seconds, count)
        if before is None or count < before[1]:
            return
        each = (seconds - before[0]) / (count - before[1])
        self._late.append(each)
        if len(self._early) <= _BASELINE_STEPS:
            self._early.append(each)

    def numbers(self) -> Numbers:
        """Return the loss curve and the median step times of the latest and of the first steps."""
        first = self._early[1:]
        losses = self._losses
        if losses and self._last_loss is not None and self._skipped:
            losses = [*losses, self._last_loss]
        return Numbers(
            losses=tuple(losses[-2 * MOST_LOSSES :]),
            step_seconds=median(self._late) if self._late else None,
            baseline_seconds=median(first) if len(first) >= _RECENT_STEPS else None,
        )


def trend_of(losses: Iterable[float], steps: Iterable[tuple[float, float]]) -> Numbers:
    """Return the trends of a complete history. `steps` contains the arguments of calls to `Trend.steps`."""
    trend = Trend()
    for value in losses:
        trend.loss(value)
    for seconds, count in steps:
        trend.steps(seconds, count)
    return trend.numbers()


#: Newest values of one run, by the metric's name without ``stallwatch_``.
Latest = Mapping[str, Mapping[Which, float]]

#: Metrics of the accelerators' memory. A row shows the first of these metrics that its run reports.
MEMORY = ("memory_allocated_bytes", "memory_reserved_bytes", "memory_peak_bytes")
#: All metrics that a row of the Runs page uses.
METRICS = (
    "step",
    "target_steps",
    "loss",
    "trace_cache_invalidations_total",
    *MEMORY,
    "host_memory_bytes",
    "host_memory_limit_bytes",
    "phase",
    "stalled",
    "stalled_seconds_total",
    "step_duration_seconds_sum",
    "step_duration_seconds_count",
    "last_progress_timestamp_seconds",
    "stall_threshold_seconds",
    "end_timestamp_seconds",
)


def summary_of(latest: Latest, trend: Numbers, *, now: float) -> Numbers:
    """Return the values for a run's row: the run's `trend` and newest values."""

    def highest(metric: str) -> float | None:
        return max(latest.get(metric, {}).values(), default=None)

    loss = latest.get("loss", {})
    memory = (*MEMORY, "host_memory_bytes")
    stepping, steps = highest("step_duration_seconds_sum"), highest("step_duration_seconds_count")
    # After a single scrape, there is no earlier value to subtract, so the mean of all steps is used
    # instead.
    mean = stepping / steps if stepping is not None and steps else None
    phase = _phase(latest.get("phase", {}))
    ending, ended_at = _ending(latest.get("end_timestamp_seconds", {}))
    progressed_at, alarm_at = _silence(latest, phase)
    return replace(
        trend,
        step=highest("step"),
        total_steps=highest("target_steps"),
        loss=loss[min(loss, key=series_order)] if loss else None,
        step_seconds=trend.step_seconds if trend.step_seconds is not None else mean,
        invalidations=highest("trace_cache_invalidations_total"),
        memory_bytes=next((used for used in map(highest, memory) if used is not None), None),
        host_memory_bytes=highest("host_memory_bytes"),
        host_memory_limit_bytes=highest("host_memory_limit_bytes"),
        phase=phase,
        stalled_seconds=highest("stalled_seconds_total"),
        stepping_seconds=stepping,
        ended_at=ended_at,
        ended_as=ending,
        overdue=highest("stalled") == 1 if latest.get("stalled") else alarm_at is not None and now > alarm_at,
        progressed_at=progressed_at,
        alarm_at=alarm_at,
    )


def _phase(states: Mapping[Which, float]) -> str:
    return next((label_of(which, "stallwatch_phase") for which, on in states.items() if on), "")


def _ending(moments: Mapping[Which, float]) -> tuple[str, float | None]:
    if not moments:
        return "", None
    # If one host fails, its end is the end of the run, regardless of when other hosts ended.
    which = max(moments, key=lambda series: (label_of(series, "ending") not in ENDINGS, moments[series]))
    return label_of(which, "ending"), moments[which]


def _silence(latest: Latest, phase: str) -> tuple[float | None, float | None]:
    """Return the time of the last progress and the time when a lack of progress becomes a stall."""
    progressed = max(latest.get("last_progress_timestamp_seconds", {}).values(), default=0.0)
    limits = {
        label_of(which, "phase"): seconds
        for which, seconds in latest.get("stall_threshold_seconds", {}).items()
    }
    limit = limits.get(phase or "train")
    if not progressed:
        return None, None
    return progressed, None if limit is None else progressed + limit


def label_of(which: Which, name: str) -> str:
    """Return the value of one of a series' labels."""
    return str(json.loads(which[1]).get(name, "")) if which[1] else ""


_LOSS = "stallwatch_loss"
_SUM, _COUNT = "stallwatch_step_duration_seconds_sum", "stallwatch_step_duration_seconds_count"
_EARLY_POINTS, _LATE_POINTS = 80, 20


def _place(rank: int | None) -> float:
    return math.inf if rank is None else rank


class Trends:
    """The trends of all runs. This class is not thread-safe."""

    def __init__(self) -> None:
        self._trends: dict[str, Trend] = {}
        self._losses: dict[str, tuple[float, float]] = {}  # sort key and last loss of the representative rank

    def load(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Load the points that an earlier process wrote."""
        for run, rank, value in connection.execute(_LOSSES, [_LOSS, 2 * MOST_LOSSES]).fetchall():
            self._losses[run] = (_place(rank), value)
            self._trend(run).loss(value)
        paces: dict[str, dict[str, dict[float, float]]] = {}
        for run, metric, points in connection.execute(_STEPS, [_SUM, _COUNT]).fetchall():
            paces.setdefault(run, {})[metric] = {point["t"]: point["v"] for point in points}
        for run, by_metric in paces.items():
            sums, counts = by_metric.get(_SUM, {}), by_metric.get(_COUNT, {})
            for time in sorted(sums.keys() & counts.keys()):
                self._trend(run).steps(sums[time], counts[time])

    def take(self, readings: Iterable[Reading]) -> None:
        paces: dict[str, dict[str, float]] = {}
        for reading in readings:
            metric = reading.metric
            if metric == _LOSS:
                self._loss(reading)
            elif metric in (_SUM, _COUNT):
                paces.setdefault(reading.run, {})[metric] = reading.value
        for run, pair in paces.items():
            if len(pair) == 2:
                self._trend(run).steps(pair[_SUM], pair[_COUNT])

    def trend(self, run: str) -> Numbers:
        return self._trends[run].numbers() if run in self._trends else Numbers()

    def forget(self, run: str) -> None:
        self._trends.pop(run, None)
        self._losses.pop(run, None)

    def _trend(self, run: str) -> Trend:
        return self._trends.setdefault(run, Trend())

    def _loss(self, reading: Reading) -> None:
        """Add the loss of the lowest rank, which represents the run, unless it was added before."""
        order, (first, last) = _place(reading.rank), self._losses.get(reading.run, (math.inf, None))
        if order <= first and reading.value != last:
            self._losses[reading.run] = (order, reading.value)
            self._trend(reading.run).loss(reading.value)


#: Selects all values that have a rank, and the first agent's values that have no rank.
_SPEAKS = """(rank IS NOT NULL OR agent = (
    SELECT min(agent) FROM series AS every WHERE every.run = series.run AND every.metric = series.metric
))"""
_LOSSES = f"""
WITH every AS (
    SELECT run, rank, coalesce(rank, 2147483647) AS place, t, v
    FROM points JOIN series ON id = series WHERE metric = ? AND v IS NOT NULL AND {_SPEAKS}
),
ends AS (SELECT run, min(place) AS place, min(t) AS first, max(t) AS last FROM every GROUP BY run)
SELECT run, any_value(rank), arg_max(v, t) AS v
FROM every JOIN ends USING (run, place)
GROUP BY run, floor((t - first) / greatest((last - first) / ?, 1e-6))
ORDER BY run, max(t)
"""
_STEPS = f"""
WITH every AS (
    SELECT run, metric, {{'t': t, 'v': v}} AS point, t
    FROM points JOIN series ON id = series WHERE metric IN (?, ?) AND v IS NOT NULL AND {_SPEAKS}
)
SELECT run, metric,
    list_distinct(list_concat(min_by(point, t, {_EARLY_POINTS}), max_by(point, t, {_LATE_POINTS})))
FROM every GROUP BY run, metric
"""
