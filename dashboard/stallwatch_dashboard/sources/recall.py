"""The points of the runs that somebody looks at: read from the file once, then told of every write.

Without it each refresh of a Run page would look through the file of all runs some twenty times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import duckdb
import pandas as pd

_MOST_RUNS = 12
_LOADED_POINTS = (
    24_000  #: of one metric; a longer one keeps the lowest and highest value of each span of time
)
_MOST_FRESH = 16_000  #: of one metric; then the run is read anew

Point = tuple[int, float, float]  #: series, time, value


@dataclass
class _Run:
    metrics: dict[int, str]  # of its series
    base: dict[str, pd.DataFrame] | None = None  # None while it is read
    fresh: dict[str, list[Point]] = field(default_factory=dict)


class Recall:
    """Safe for several threads. `cursor` gives a new one on the file."""

    def __init__(self, cursor: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self._cursor = cursor
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._owner: dict[int, str] = {}  # run of a series, of the runs that are kept

    def take(self, points: Iterable[Point]) -> None:
        """Points that were just written."""
        with self._lock:
            if not self._runs:
                return
            for point in points:
                if (run := self._owner.get(point[0])) is not None:
                    kept = self._runs[run]
                    kept.fresh.setdefault(kept.metrics[point[0]], []).append(point)

    def forget(self, run: str | None = None) -> None:
        """Read the run, or all of them, anew at the next question."""
        with self._lock:
            for name in list(self._runs) if run is None else [run]:
                if (gone := self._runs.pop(name, None)) is not None:
                    for series in gone.metrics:
                        self._owner.pop(series, None)

    def points(self, run: str, metric: str, series: Mapping[int, str]) -> pd.DataFrame:
        """Columns ``series, t, v`` of one metric; `series` is the metric of each of the run's series."""
        kept = self._loaded(run, series)
        with self._lock:
            base = (kept.base or {}).get(metric)
            fresh = list(kept.fresh.get(metric, ()))
        if len(fresh) > _MOST_FRESH:
            self.forget(run)
        parts = [] if base is None else [base]
        if fresh:
            parts.append(pd.DataFrame(fresh, columns=["series", "t", "v"]))
        return pd.concat(parts, ignore_index=True) if parts else _nothing()

    def _loaded(self, run: str, series: Mapping[int, str]) -> _Run:
        with self._lock:
            kept = self._runs.pop(run, None)
            if (
                kept is None or kept.metrics.keys() != series.keys()
            ):  # a new series: its first points count, too
                kept = _Run(dict(series))
                self._owner |= dict.fromkeys(series, run)
            self._runs[run] = kept  # the last one asked for stays longest
            oldest = next(iter(self._runs)) if len(self._runs) > _MOST_RUNS else None
        if oldest is not None:
            self.forget(oldest)
        if kept.base is None:
            kept.base = self._read(series)  # what is written meanwhile may be in it twice, which does no harm
        return kept

    def _read(self, series: Mapping[int, str]) -> dict[str, pd.DataFrame]:
        cursor = self._cursor()
        try:
            asked = pd.DataFrame({"series": list(series), "metric": list(series.values())})
            cursor.register("asked", asked)
            found = cursor.execute(_QUESTION, [_LOADED_POINTS]).df()
        finally:
            cursor.close()
        return {str(name): rows[["series", "t", "v"]] for name, rows in found.groupby("metric")}


def _nothing() -> pd.DataFrame:
    return pd.DataFrame({"series": pd.Series(dtype="int64"), "t": [], "v": []}).astype(
        {"t": float, "v": float}
    )


#: One look through the file for all metrics of a run.
_QUESTION = """
WITH own AS MATERIALIZED (
    SELECT series, metric, t, v FROM points JOIN asked USING (series)
),
lengths AS (
    SELECT metric, count(*) AS many, ? AS most, count(DISTINCT series) AS lines,
        min(t) AS first, max(t) AS last
    FROM own GROUP BY metric
)
SELECT series, metric, t, v FROM own JOIN lengths USING (metric) WHERE many <= most
UNION ALL
SELECT series, metric,
    unnest([coalesce(arg_min(t, v), min(t)), coalesce(arg_max(t, v), max(t))]) AS t,
    unnest([min(v), max(v)]) AS v
FROM own JOIN lengths USING (metric) WHERE many > most
GROUP BY series, metric, floor((t - first) / greatest((last - first) / greatest(most / (2 * lines), 1), 1e-6))
"""
