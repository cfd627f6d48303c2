"""Store the metrics of all runs in a local DuckDB file and return them as pandas frames."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import pandas as pd

from stallwatch_dashboard.data.cache import (
    EACH_POINTS,
    Point,
    PointCache,
    Points,
    joined,
    of_rows,
    series_frame,
)
from stallwatch_dashboard.data.frames import SILENT_SECONDS, Key, Which, fold, host_of, series_order
from stallwatch_dashboard.data.metrics_page import Reading
from stallwatch_dashboard.data.overview import Numbers
from stallwatch_dashboard.data.summaries import METRICS, Trends, label_of, summary_of
from stallwatch_exporter.runs.run_state import ENDINGS
from stallwatch_rules.messages import Message, Text, message

HEARTBEAT_SECONDS = 60.0  #: seconds after which an unchanged value is rewritten
POINTS = 1200  #: maximum number of points of one query: two per pixel of a chart
_MOST_POINTS = 20_000  #: maximum number of points of one query of many series
_LASTING = "stallwatch_end_timestamp_seconds"  #: an agent reports this metric as it exits

_SCHEMA = """
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY,
    run VARCHAR NOT NULL, metric VARCHAR NOT NULL, rank INTEGER, labels VARCHAR NOT NULL
);
ALTER TABLE series ADD COLUMN IF NOT EXISTS agent VARCHAR DEFAULT '';
CREATE TABLE IF NOT EXISTS points (series INTEGER NOT NULL, t DOUBLE NOT NULL, v DOUBLE);
"""
_Name = tuple[str, str]  # run and metric


@dataclass
class _Series:
    id: int
    name: _Name
    key: Key
    written: float  #: time of the last point in the file
    seen: float  #: time of the last scrape that showed `value`
    value: float


class MetricStore:
    """Stores the time series of metrics in DuckDB. Several threads can read while one thread writes.

    A point is stored when a value changes. A constant value takes only one point per minute. When a constant
    value changes, an additional point marks the end of the plateau, so that a chart shows the change at the
    right time. NaN is stored as NULL.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Open or create the file at `path`. ``None`` uses only memory. Raise ``duckdb.Error`` on failure."""
        self.path = path
        self.problem: Text | None = None  #: reason why this store cannot save metrics, shown on the pages
        self._lock = threading.Lock()
        self._series: dict[_Name, dict[Key, _Series]] = {}
        self._agents: dict[str, dict[str, float]] = {}  # time of the last scrape, by run and agent
        self._seen: dict[str, float] = {}  # time of the last scrape, by run
        self._first: dict[str, float] = {}  # time of the oldest value, by run
        self._trends = Trends()
        self._next_id = 1
        # Two threads and half a GiB are sufficient and leave most of the host's resources to the training
        # run.
        self._connection = duckdb.connect(
            str(path) if path else ":memory:", config={"threads": 2, "memory_limit": "512MB"}
        )
        self._connection.execute(_SCHEMA)
        self._cache = PointCache(self._connection.cursor)
        self._load()

    @classmethod
    def open(cls, path: Path) -> MetricStore:
        """Open the store at `path`.

        If this fails, return a store in memory, whose `problem` contains the reason.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return cls(path)
        except (duckdb.Error, OSError) as error:
            store = cls(None)
            store.problem = _why(error, path)
            return store

    def write(self, readings: Iterable[Reading], time: float) -> int:
        """Write the readings from one scrape. Return the number of points written to the file."""
        readings = list(readings)
        with self._lock:
            fresh: list[_Series] = []
            points: list[tuple[str, str, Point]] = []
            for reading in readings:
                self._take(reading, time, fresh, points)
                self._seen[reading.run] = time
                self._agents.setdefault(reading.run, {})[reading.agent] = time
                self._first.setdefault(reading.run, time)
            self._trends.take(
                reading
                for reading in readings
                if reading.rank is not None or reading.agent == min(self._present_agents(reading.run))
            )
            try:
                self._insert(fresh, [point for *_, point in points])
            except duckdb.Error:
                for series in fresh:  # the value is not in the file, so the next scrape retries the write
                    del self._series[series.name][series.key]
                raise
            self._cache.take(points)
            return len(points)

    def series(self, run: str, metric: str, *, points: int = POINTS) -> pd.DataFrame:
        """Return a metric of a run in about `points` rows with columns ``rank, labels, agent, t, v``.

        A longer series is thinned. Each time span keeps its lowest and highest values to preserve peaks. If
        there are more than four series, each series gets a quarter of `points`, but all series together get
        at most `_MOST_POINTS`. If more than `POINTS` are requested, each series gets at least `EACH_POINTS`.
        The last value is repeated at the time of the last scrape that showed it, so that a plateau extends to
        the current time.
        """
        with self._lock:
            every = self._series.get((run, metric), {})
            family = [every[key] for key in sorted(every, key=series_order)]
            ends = of_rows([(series.id, series.seen, series.value) for series in family])
        most = max(points, min(_MOST_POINTS, points * len(family) // 4))
        if points > POINTS:
            most = max(most, EACH_POINTS * len(family))
        found = joined(self._cache.points(run, metric, most), ends)
        place = pd.Index(ends.series).get_indexer(pd.Index(found.series))
        known = place >= 0  # a series that was added during the query is omitted until the next query
        shown = Points(place[known], found.t[known], found.v[known])
        return series_frame([series.key for series in family], shown)

    def latest(self, run: str, metric: str) -> dict[Which, float]:
        with self._lock:
            return self._latest(run, metric)

    def _latest(self, run: str, metric: str) -> dict[Which, float]:
        """Return the newest values of a metric, combined from all agents that are not silent.

        Return the values about the end of an agent only if the run is over.
        """
        there = self._present_agents(run)
        by_which: dict[Which, list[tuple[str, float]]] = {}
        for (rank, labels, agent), series in self._series.get((run, metric), {}).items():
            if agent in there or metric.endswith(_LASTING):
                by_which.setdefault((rank, labels), []).append((agent, series.value))
        if metric.endswith(_LASTING) and not _over(by_which, there):
            return {}
        return {which: fold(metric, [value for _, value in reported]) for which, reported in by_which.items()}

    def _present_agents(self, run: str) -> set[str]:
        """Return the agents of the run that are not silent. The first of them represents the run."""
        agents = self._agents.get(run, {})
        since = max(agents.values(), default=0.0) - SILENT_SECONDS
        return {agent for agent, seen in agents.items() if seen >= since}

    def hosts(self, run: str) -> dict[str, float]:
        found: dict[str, float] = {}
        with self._lock:
            for agent, seen in self._agents.get(run, {}).items():
                if agent:
                    found[host_of(agent)] = max(seen, found.get(host_of(agent), seen))
        return found

    def last_seen(self) -> dict[str, float]:
        with self._lock:
            return dict(self._seen)

    def summaries(self, runs: Iterable[str], now: float) -> dict[str, Numbers]:
        """Return the values for each run's row from memory, without reading the database file."""
        found = {}
        with self._lock:
            for run in runs:
                latest = {metric: self._latest(run, f"stallwatch_{metric}") for metric in METRICS}
                trend = replace(self._trends.trend(run), started_at=self._first.get(run))
                found[run] = summary_of(latest, trend, now=now)
        return found

    def first_seen(self, run: str) -> float | None:
        with self._lock:
            return self._first.get(run)

    def prune(self, before: float) -> None:
        """Delete all points and series older than the Unix time `before`."""
        with self._lock:
            cursor = self._connection.cursor()
            self._cache.forget()
            cursor.execute("DELETE FROM points WHERE t < ?", [before])
            for family in self._series.values():
                for key in [key for key, series in family.items() if series.seen < before]:
                    cursor.execute("DELETE FROM series WHERE id = ?", [family.pop(key).id])
            self._series = {name: family for name, family in self._series.items() if family}
            for run in self._seen.keys() - {run for run, _ in self._series}:
                del self._seen[run]
                self._agents.pop(run, None)
                self._trends.forget(run)
            self._first = dict(cursor.execute(_FIRST).fetchall())
            cursor.close()

    def close(self) -> None:
        """Write the last point of each constant value and close the file."""
        with self._lock:
            ends = [
                (series.id, series.seen, series.value)
                for family in self._series.values()
                for series in family.values()
                if series.seen > series.written
            ]
            self._insert([], ends)
            self._connection.close()

    def _take(
        self, reading: Reading, time: float, fresh: list[_Series], points: list[tuple[str, str, Point]]
    ) -> None:
        name, key = (reading.run, reading.metric), (reading.rank, reading.labels, reading.agent)
        family = self._series.setdefault(name, {})
        series = family.get(key)
        if series is None:
            series = family[key] = _Series(self._next_id, name, key, time, time, reading.value)
            self._next_id += 1
            fresh.append(series)
        elif _same(series.value, reading.value):
            series.seen = time
            if time - series.written < HEARTBEAT_SECONDS:
                return
        elif series.seen > series.written:
            points.append((*name, (series.id, series.seen, series.value)))
        series.written = series.seen = time
        series.value = reading.value
        points.append((*name, (series.id, time, reading.value)))

    def _insert(self, fresh: list[_Series], points: list[Point]) -> None:
        if not points:
            return
        cursor = self._connection.cursor()
        try:
            cursor.execute("BEGIN")
            if fresh:
                rows = [(series.id, *series.name, *series.key) for series in fresh]
                cursor.executemany("INSERT INTO series VALUES (?, ?, ?, ?, ?, ?)", rows)
            batch = pd.DataFrame(points, columns=["series", "t", "v"])
            cursor.register("batch", batch)
            cursor.execute("INSERT INTO points SELECT series, t, v FROM batch")
            cursor.execute("COMMIT")
        except duckdb.Error:
            cursor.execute("ROLLBACK")
            raise
        finally:
            cursor.close()

    def _load(self) -> None:
        """Load the newest values that an earlier process wrote to the file."""
        rows = self._connection.execute(_NEWEST).fetchall()
        for number, run, metric, rank, labels, agent, first, time, value in rows:
            self._first[run] = min(first, self._first.get(run, first))
            name, key = (run, metric), (rank, labels, agent)
            self._series.setdefault(name, {})[key] = _Series(number, name, key, time, time, value)
            self._seen[run] = max(time, self._seen.get(run, time))
            agents = self._agents.setdefault(run, {})
            agents[agent] = max(time, agents.get(agent, time))
        self._trends.load(self._connection)
        highest = self._connection.execute("SELECT coalesce(max(id), 0) FROM series").fetchone()
        self._next_id = (highest[0] if highest else 0) + 1


_FIRST = """
SELECT run, min(t) FROM series JOIN (SELECT series, min(t) AS t FROM points GROUP BY series) ON id = series
GROUP BY run
"""
#: This query scans the file twice, but takes only half as long as a single scan with ``arg_max`` (duckdb
#: 2.0).
_NEWEST = """
WITH ends AS (SELECT series, min(t) AS first, max(t) AS last FROM points GROUP BY series)
SELECT id, run, metric, rank, labels, agent, first, last, coalesce(v, 'nan'::DOUBLE)
FROM series JOIN ends ON ends.series = id JOIN points ON points.series = id AND t = last
"""


def _over(endings: dict[Which, list[tuple[str, float]]], there: set[str]) -> bool:
    """Return whether the run is over.

    A run is over if an agent reports a failure, or if every agent that reports has ended.
    """
    ended = {agent for reported in endings.values() for agent, _ in reported}
    return ended >= there or any(label_of(which, "ending") not in ENDINGS for which in endings)


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _why(error: Exception, path: Path) -> Message:
    if "lock" in str(error).lower():
        return message("dashboard.store_locked", path=str(path))
    return message("dashboard.store_unusable", path=str(path), error=plain_error(error))


def plain_error(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
