"""Cache the points of the runs that users view. Long series are thinned to the resolution of a chart."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import duckdb
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stallwatch_dashboard.data.frames import Key

_NARROWEST = 2.0**-10  #: minimum width of a time span, in seconds

Point = tuple[int, float, float]  #: series, time, value


@dataclass(frozen=True)
class Points:
    """The points of several series, as columns of equal length."""

    series: NDArray[np.int64]
    t: NDArray[np.float64]  #: Unix seconds
    v: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.t)

    def at(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> Points:
        return Points(self.series[which], self.t[which], self.v[which])


def of_rows(rows: Sequence[Point]) -> Points:
    series, t, v = zip(*rows, strict=True) if rows else ((), (), ())
    return Points(np.array(series, "int64"), np.array(t, "float64"), np.array(v, "float64"))


def joined(*parts: Points) -> Points:
    series, t, v = (np.concatenate([getattr(part, name) for part in parts]) for name in ("series", "t", "v"))
    return Points(series, t, v)


def in_order(points: Points) -> Points:
    """Sort the points by series and time. If points of a series have the same time, keep only the last."""
    points = points.at(np.lexsort((points.t, points.series)))
    if not len(points):
        return points
    last = np.ones(len(points), bool)
    last[:-1] = (points.series[1:] != points.series[:-1]) | (points.t[1:] != points.t[:-1])
    return points.at(last)


def series_frame(order: Sequence[Key], points: Points) -> pd.DataFrame:
    """Return the points as a frame with columns ``rank, labels, agent, t, v``.

    The series number of a point is the position of its series in `order`.
    """
    points = in_order(points)
    ranks = np.array([-1 if rank is None else rank for rank, _, _ in order], "int64")[points.series]
    labels, agents = (np.array([key[at] for key in order], "object")[points.series] for at in (1, 2))
    known = pd.arrays.IntegerArray(ranks, ranks < 0)
    columns = {"rank": known, "labels": labels, "agent": agents, "t": points.t, "v": points.v}
    return pd.DataFrame(columns)


def thinned(points: Points, most: int) -> Points:
    """Return about `most` points, but at least half of `most`. The points must be in order.

    The lowest and highest values of each time span are kept.
    """
    if not len(points):
        return points
    begins = np.ones(len(points), bool)
    begins[1:] = points.series[1:] != points.series[:-1]
    most_cells = max(1, most // (2 * int(begins.sum())) - 1)  # cells per series
    width = 2.0 ** math.ceil(math.log2(max(float(np.ptp(points.t)) / most_cells, _NARROWEST)))
    cells = np.floor(points.t / width)
    begins[1:] |= cells[1:] != cells[:-1]
    starts = np.flatnonzero(begins)
    group = np.cumsum(begins) - 1
    unknown = np.isnan(points.v)
    kept = np.zeros(len(points), bool)
    for reduce, worst in ((np.minimum, np.inf), (np.maximum, -np.inf)):
        values = np.where(unknown, worst, points.v)
        kept[_first(values == reduce.reduceat(values, starts)[group], group, ~unknown)] = True
    kept[_first(unknown, group, unknown)] = True
    return points.at(kept)


def _first(
    wanted: NDArray[np.bool_], group: NDArray[np.intp], allowed: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """Return, for each group, the index of the first point that is wanted and allowed, if there is one."""
    places = np.flatnonzero(wanted & allowed)
    return places[np.unique(group[places], return_index=True)[1]]


_MOST_RUNS = 12
_LOADED_POINTS = 24_000  #: maximum number of points of one metric; a metric with more points is thinned
#: Points per series if a metric has many series, such as one for each rank, and the maximum for all series.
EACH_POINTS, _MOST_LOADED = 120, 240_000
_MOST_FRESH = 16_000  #: maximum number of a metric's new points, kept as tuples until a page reads the metric


@dataclass
class _Metric:
    """A run's cached points for one metric, and the number of the metric's points in the file."""

    points: Points = field(default_factory=lambda: of_rows(()))
    many: int = 0
    fresh: list[Point] = field(default_factory=list)  # points written since `points` was built
    shown: tuple[int, int, Points] | None = None  # last call: points in the file, limit, and result

    def fold(self) -> None:
        if self.fresh:
            self.many += len(self.fresh)
            self.points = in_order(joined(self.points, of_rows(self.fresh)))
            self.fresh = []
            if len(self.points) > 2 * _LOADED_POINTS:
                series = len(np.unique(self.points.series))
                most = max(_LOADED_POINTS, min(_MOST_LOADED, EACH_POINTS * series))
                if len(self.points) > 2 * most:
                    self.points = thinned(self.points, most)

    def at_most(self, most: int) -> Points:
        """Return the points in order. If the file has more than `most` points, they are thinned."""
        self.fold()
        if self.many <= most:
            return self.points
        if self.shown is None or self.shown[:2] != (self.many, most):
            self.shown = (self.many, most, thinned(self.points, most))
        return self.shown[2]


@dataclass
class _Run:
    read: bool = False
    metrics: dict[str, _Metric] = field(default_factory=dict)


class PointCache:
    """A thread-safe cache of points. `cursor` returns a new cursor on the database file."""

    def __init__(self, cursor: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self._cursor = cursor
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}  # runs, least recently read first

    def take(self, points: Iterable[tuple[str, str, Point]]) -> None:
        """Add points after they are written to the file, each with its run and metric."""
        with self._lock:
            for run, metric, point in points:
                if (kept := self._runs.get(run)) is not None:
                    known = kept.metrics.setdefault(metric, _Metric())
                    known.fresh.append(point)
                    if len(known.fresh) > _MOST_FRESH:  # no page reads this metric
                        known.fold()

    def forget(self) -> None:
        """Clear the cache, so that the next query rereads the file."""
        with self._lock:
            self._runs.clear()

    def points(self, run: str, metric: str, most: int) -> Points:
        """Return the points of one metric in order, thinned to about `most` points."""
        with self._lock:
            kept = self._runs[run] = self._runs.pop(run, _Run())
            if len(self._runs) > _MOST_RUNS:
                del self._runs[next(iter(self._runs))]
        if not kept.read:
            found = self._read(run)  # points that arrive during this read can occur twice, which is harmless
            with self._lock:
                if not kept.read:  # another thread might have read the run
                    for name, (points, many) in found.items():
                        metric_cache = kept.metrics.setdefault(name, _Metric())
                        metric_cache.points, metric_cache.many = points, many
                    kept.read = True
        with self._lock:
            return kept.metrics[metric].at_most(most) if metric in kept.metrics else of_rows(())

    def _read(self, run: str) -> dict[str, tuple[Points, int]]:
        cursor = self._cursor()
        try:
            limits = {"most": _LOADED_POINTS, "each": EACH_POINTS, "all": _MOST_LOADED}
            rows = cursor.execute(_POINTS_QUERY, {"run": run, **limits}).df()
        finally:
            cursor.close()
        return {
            str(metric): (
                in_order(Points(*(found[name].to_numpy(kind) for name, kind in _COLUMNS.items()))),
                int(found["many"].iloc[0]),
            )
            for metric, found in rows.groupby("metric")
        }


_COLUMNS = {"series": "int64", "t": "float64", "v": "float64"}

#: Query that reads all metrics of a run in one scan of the file, and thins points as `thinned` does.
_POINTS_QUERY = """
WITH own AS MATERIALIZED (
    SELECT points.series AS series, metric, t, v
    FROM points JOIN series ON id = points.series WHERE run = $run
),
lengths AS (
    SELECT metric, many, most,
        pow(2, ceil(log2(greatest(span / greatest(most // (2 * every) - 1, 1), pow(2, -10))))) AS width
    FROM (
        SELECT metric, count(*) AS many, max(t) - min(t) AS span, count(DISTINCT series) AS every,
            greatest($most, least($all, $each * count(DISTINCT series))) AS most
        FROM own GROUP BY metric
    )
),
cells AS (
    SELECT series, metric, any_value(many) AS many, unnest([
        {'t': arg_min(t, {'v': v, 't': t}) FILTER (v IS NOT NULL), 'v': min(v)},
        {'t': arg_max(t, {'v': v, 't': -t}) FILTER (v IS NOT NULL), 'v': max(v)},
        {'t': min(t) FILTER (v IS NULL), 'v': NULL}
    ]) AS point
    FROM own JOIN lengths USING (metric) WHERE many > most
    GROUP BY series, metric, floor(t / width)
)
SELECT series, metric, many, t, coalesce(v, 'nan'::DOUBLE) AS v
FROM own JOIN lengths USING (metric) WHERE many <= most
UNION ALL
SELECT series, metric, many, point.t, coalesce(point.v, 'nan'::DOUBLE) FROM cells WHERE point.t IS NOT NULL
"""
