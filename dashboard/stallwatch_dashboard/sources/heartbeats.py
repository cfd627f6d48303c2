"""The pulses of all runs in the embedded store: read once from the file, then kept up with every scrape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import duckdb

from stallwatch_dashboard.sources.exposition import Reading
from stallwatch_dashboard.sources.pulses import MOST_LOSSES, Pulse, Window

_LOSS = "stallwatch_loss"
_SUM, _COUNT = "stallwatch_step_duration_seconds_sum", "stallwatch_step_duration_seconds_count"
_EARLY_POINTS, _LATE_POINTS = 80, 20


class Heartbeats:
    """Not safe for several threads: its owner has a lock."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}
        self._loss_rank: dict[str, float] = {}
        self._last_loss: dict[str, float] = {}

    def load(self, connection: duckdb.DuckDBPyConnection, began: Mapping[str, float]) -> None:
        """Read what an earlier process wrote; `began` is the time of each run's first number."""
        for run, first in began.items():
            self._window(run).took(first)
        for run, rank, value in connection.execute(_LOSSES, [_LOSS, 2 * MOST_LOSSES]).fetchall():
            self._loss_rank[run] = _order(rank)
            self._last_loss[run] = value
            self._window(run).loss(value)
        paces: dict[str, dict[str, dict[float, float]]] = {}
        for run, metric, points in connection.execute(_STEPS, [_SUM, _COUNT]).fetchall():
            paces.setdefault(run, {})[metric] = {point["t"]: point["v"] for point in points}
        for run, told in paces.items():
            sums, counts = told.get(_SUM, {}), told.get(_COUNT, {})
            for time in sorted(sums.keys() & counts.keys()):
                self._window(run).steps(sums[time], counts[time])

    def take(self, readings: Iterable[Reading], time: float) -> None:
        """The readings of one scrape."""
        paces: dict[str, dict[str, float]] = {}
        for reading in readings:
            metric = reading.metric
            if metric == _LOSS:
                self._loss(reading)
            elif metric in (_SUM, _COUNT):
                paces.setdefault(reading.run, {})[metric] = reading.value
        for run, told in paces.items():
            window = self._window(run)
            window.took(time)
            if len(told) == 2:
                window.steps(told[_SUM], told[_COUNT])

    def pulse(self, run: str) -> Pulse:
        """The run's pulse; an empty one where it is not known."""
        window = self._windows.get(run)
        return window.pulse() if window is not None else Pulse()

    def forget(self, run: str) -> None:
        """Drop a run that is no longer kept."""
        self._windows.pop(run, None)
        self._loss_rank.pop(run, None)
        self._last_loss.pop(run, None)

    def _window(self, run: str) -> Window:
        return self._windows.setdefault(run, Window())

    def _loss(self, reading: Reading) -> None:
        """Of several ranks the lowest speaks for the run; a number that only stands there is no new one."""
        run, order = reading.run, _order(reading.rank)
        if order > self._loss_rank.get(run, math.inf) or reading.value == self._last_loss.get(run):
            return
        self._loss_rank[run], self._last_loss[run] = order, reading.value
        self._window(run).loss(reading.value)


def _order(rank: int | None) -> float:
    return math.inf if rank is None else rank


_LOSSES = """
WITH every AS (
    SELECT run, rank, coalesce(rank, 2147483647) AS place, t, v
    FROM points JOIN series ON id = series WHERE metric = ? AND v IS NOT NULL
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
    FROM points JOIN series ON id = series WHERE metric IN (?, ?) AND v IS NOT NULL
)
SELECT run, metric,
    list_distinct(list_concat(min_by(point, t, {_EARLY_POINTS}), max_by(point, t, {_LATE_POINTS})))
FROM every GROUP BY run, metric
"""
