"""Points of the runs that somebody looks at, kept in memory and thinned to what a chart can show."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import duckdb
import numpy as np
import pandas as pd
from numpy.typing import NDArray

_NARROWEST = 2.0**-10  #: seconds


@dataclass(frozen=True)
class Points:
    """Points of several series, as columns of one length."""

    series: NDArray[np.int64]
    t: NDArray[np.float64]  #: Unix seconds
    v: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.t)

    def at(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> Points:
        return Points(self.series[which], self.t[which], self.v[which])


def nothing() -> Points:
    return Points(np.empty(0, "int64"), np.empty(0), np.empty(0))


def joined(*parts: Points) -> Points:
    series, t, v = (np.concatenate([getattr(part, name) for part in parts]) for name in ("series", "t", "v"))
    return Points(series, t, v)


def in_order(points: Points) -> Points:
    """By series and time; of several at one moment the last counts."""
    points = points.at(np.lexsort((points.t, points.series)))
    if not len(points):
        return points
    last = np.ones(len(points), bool)
    last[:-1] = (points.series[1:] != points.series[:-1]) | (points.t[1:] != points.t[:-1])
    return points.at(last)


def cell_width(span: float, lines: int, most: int) -> float:
    """Seconds of a cell, so that `lines` series over `span` seconds come to about `most` points at most."""
    cells = max(1, most // (2 * lines) - 1)
    return float(2.0 ** math.ceil(math.log2(max(span / cells, _NARROWEST))))


def thinned(points: Points, most: int) -> Points:
    """About `most` at most, and half as many at least where there were so many. `points` must be in order."""
    if not len(points):
        return points
    begins = np.ones(len(points), bool)
    begins[1:] = points.series[1:] != points.series[:-1]
    width = cell_width(float(np.ptp(points.t)), int(begins.sum()), most)
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
    """The place of the first wanted point of each group that has one."""
    places = np.flatnonzero(wanted & allowed)
    return places[np.unique(group[places], return_index=True)[1]]


_MOST_RUNS = 12
_LOADED_POINTS = 24_000  #: of one metric; a longer one keeps the extremes of each span of time
_MOST_FRESH = 16_000  #: points that a metric keeps apart, as tuples, until it is asked for

Point = tuple[int, float, float]  #: series, time, value


@dataclass
class _Metric:
    """What is kept of one metric of one run, and how many points it has in the file."""

    points: Points = field(default_factory=nothing)
    many: int = 0
    fresh: list[Point] = field(default_factory=list)  # written since `points` were put together
    shown: tuple[int, int, Points] | None = None  # of so many points, so many at most: the last answer

    def fold(self) -> None:
        if self.fresh:
            series, t, v = zip(*self.fresh, strict=True)
            self.fresh = []
            self.many += len(t)
            self.points = in_order(joined(self.points, Points(np.array(series), np.array(t), np.array(v))))
            if len(self.points) > 2 * _LOADED_POINTS:
                self.points = thinned(self.points, _LOADED_POINTS)

    def told(self, most: int) -> Points:
        """In order; thinned where the file has more than `most`."""
        self.fold()
        if self.many <= most:
            return self.points
        if self.shown is None or self.shown[:2] != (self.many, most):
            self.shown = (self.many, most, thinned(self.points, most))
        return self.shown[2]


@dataclass
class _Run:
    metrics: dict[int, str]  # of its series
    read: bool = False
    kept: dict[str, _Metric] = field(default_factory=dict)


class Recall:
    """Safe for several threads. `cursor` gives a new one on the file."""

    def __init__(self, cursor: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self._cursor = cursor
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._owner: dict[int, str] = {}  # run of a series, of the runs that are kept

    def take(self, points: Iterable[Point], fresh: Iterable[tuple[int, str, str]] = ()) -> None:
        """Points that were just written, and the number, run and metric of each series that is new."""
        with self._lock:
            if not self._runs:
                return
            for number, run, metric in fresh:
                if (kept := self._runs.get(run)) is not None:
                    kept.metrics[number] = metric
                    self._owner[number] = run
            for point in points:
                if (owner := self._owner.get(point[0])) is not None:
                    kept = self._runs[owner]
                    told = kept.kept.setdefault(kept.metrics[point[0]], _Metric())
                    told.fresh.append(point)
                    if len(told.fresh) > _MOST_FRESH:  # no page asks for this one
                        told.fold()

    def forget(self, run: str | None = None) -> None:
        """Read the run, or all of them, anew at the next question."""
        with self._lock:
            for name in list(self._runs) if run is None else [run]:
                if (gone := self._runs.pop(name, None)) is not None:
                    for series in gone.metrics:
                        self._owner.pop(series, None)

    def points(self, run: str, metric: str, series: Mapping[int, str], most: int) -> Points:
        """One metric in order, about `most` points of it; `series` gives the metric of each of its run's."""
        kept = self._loaded(run, series)
        with self._lock:
            found = kept.kept.get(metric)
            return found.told(most) if found is not None else nothing()

    def _loaded(self, run: str, series: Mapping[int, str]) -> _Run:
        with self._lock:
            kept = self._runs.pop(run, None)
            if kept is None or not series.keys() <= kept.metrics.keys():
                kept = _Run(dict(series))
                self._owner |= dict.fromkeys(series, run)
            self._runs[run] = kept  # the last one asked for stays longest
            oldest = next(iter(self._runs)) if len(self._runs) > _MOST_RUNS else None
        if oldest is not None:
            self.forget(oldest)
        if not kept.read:
            found = self._read(series)  # what is written meanwhile may be in it twice, which does no harm
            with self._lock:
                if not kept.read:  # another thread may have read it meanwhile, and gone on
                    for metric, (points, many) in found.items():
                        own = kept.kept.setdefault(metric, _Metric())
                        own.points, own.many = points, many
                    kept.read = True
        return kept

    def _read(self, series: Mapping[int, str]) -> dict[str, tuple[Points, int]]:
        names = sorted(set(series.values()))
        place = {name: number for number, name in enumerate(names)}
        cursor = self._cursor()
        try:
            asked = pd.DataFrame(
                {"series": list(series), "metric": [place[name] for name in series.values()]}
            )
            cursor.register("asked", asked)
            rows = cursor.execute(_QUESTION, {"most": _LOADED_POINTS}).fetchnumpy()
        finally:
            cursor.close()
        every = Points(*(np.asarray(rows[name], kind) for name, kind in _COLUMNS.items()))
        metric, many = np.asarray(rows["metric"]), np.asarray(rows["many"])
        found = {}
        for name, number in place.items():
            own = np.flatnonzero(metric == number)
            if len(own):
                found[name] = (in_order(every.at(own)), int(many[own[0]]))
        return found


_COLUMNS = {"series": "int64", "t": "float64", "v": "float64"}

#: One look through the file for all metrics of a run. Thins as `thinning.thinned` does.
_QUESTION = """
WITH own AS MATERIALIZED (
    SELECT series, metric, t, v FROM points JOIN asked USING (series)
),
lengths AS (
    SELECT metric, count(*) AS many,
        pow(2, ceil(log2(greatest(
            (max(t) - min(t)) / greatest($most // (2 * count(DISTINCT series)) - 1, 1), pow(2, -10)
        )))) AS width
    FROM own GROUP BY metric
),
cells AS (
    SELECT series, metric, any_value(many) AS many, unnest([
        {'t': arg_min(t, {'v': v, 't': t}) FILTER (v IS NOT NULL), 'v': min(v)},
        {'t': arg_max(t, {'v': v, 't': -t}) FILTER (v IS NOT NULL), 'v': max(v)},
        {'t': min(t) FILTER (v IS NULL), 'v': NULL}
    ]) AS point
    FROM own JOIN lengths USING (metric) WHERE many > $most
    GROUP BY series, metric, floor(t / width)
)
SELECT series, metric, many, t, coalesce(v, 'nan'::DOUBLE) AS v
FROM own JOIN lengths USING (metric) WHERE many <= $most
UNION ALL
SELECT series, metric, many, point.t, coalesce(point.v, 'nan'::DOUBLE) FROM cells WHERE point.t IS NOT NULL
"""
