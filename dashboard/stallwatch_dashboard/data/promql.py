"""Build PromQL queries, send them to a Prometheus server, and cache the results."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from stallwatch_alerts.prometheus.clients import NoAnswer, Prometheus
from stallwatch_dashboard.data.frames import Floats
from stallwatch_dashboard.data.metrics_page import IDENTITY, PREFIX
from stallwatch_exporter.runs.run_state import ENDINGS
from stallwatch_rules.messages import Text, message

MOST_NAMES = 50  #: maximum number of runs in one query
_END = "end_timestamp_seconds"
_KEPT = "run, __name__, stallwatch_phase, phase, ending"


def newest(names: Collection[str], wanted: str, over: str = "") -> str:
    """Return a query for the newest value of each metric in `names`: the maximum over each run's ranks."""
    series = selector(names, wanted)
    if over:
        series = f"last_over_time({series}{over})"
    elif _END in names:  # a host's end counts only if it is a failure, or if no other host continues
        run = f"{{{wanted}}}"
        others = f"{IDENTITY}{run} unless on (run, instance) {PREFIX}{_END}{run}"
        ended = f'{PREFIX}{_END}{{ending=~"{"|".join(ENDINGS)}"{"," if wanted else ""}{wanted}}}'
        series = f"{series} unless on (run, instance, __name__) ({ended} and on (run) ({others}))"
    return f"max by ({_KEPT}) ({series})"


def selector(names: Collection[str], wanted: str) -> str:
    """Return a PromQL selector for these metrics. `wanted` selects the runs; "" selects all runs."""
    every = "|".join(f"{PREFIX}{name}" for name in names)
    return f'{{__name__=~"{every}"{"," if wanted else ""}{wanted}}}'


def is_run(run: str) -> str:
    return f"run={_quoted(run)}"


def among(runs: Collection[str]) -> str:
    return f"run=~{_quoted('|'.join(map(re.escape, runs)))}"


def portions(runs: list[str]) -> list[list[str]]:
    """Split the runs into lists that are short enough for one query."""
    return [runs[first : first + MOST_NAMES] for first in range(0, len(runs), MOST_NAMES)]


def _quoted(text: str) -> str:
    """Quote a label value for a query. JSON escapes are also valid in PromQL."""
    return json.dumps(text, ensure_ascii=False)


_AT_ONCE = 4  #: number of concurrent queries; suits a server with two processors
_SHOWN_SECONDS = 90.0  #: maximum age of a shown error; a page repeats its queries at least once a minute


class Questions:
    """Sends queries to a Prometheus server. This class is thread-safe. Times are Unix timestamps in seconds.

    If the server does not respond, the results are empty or None.
    """

    def __init__(self, server: Prometheus, clock: Callable[[], float]) -> None:
        self._server = server
        self._clock = clock
        self._lock = threading.Lock()
        self._failed: dict[str, tuple[float, Text]] = {}  # time and reason of each query's failure
        self.executor = ThreadPoolExecutor(_AT_ONCE, "prometheus")

    @property
    def problem(self) -> Text | None:
        """The reason why metrics are missing: the newest error of a query whose last attempt failed."""
        now = self._clock()
        with self._lock:
            self._failed = {
                query: value for query, value in self._failed.items() if abs(now - value[0]) <= _SHOWN_SECONDS
            }
            return max(self._failed.values(), key=lambda value: value[0], default=(now, None))[1]

    def close(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)

    def instant(self, query: str, at: float | None = None) -> list[Any]:
        return self._query("/api/v1/query", query, time=self._clock() if at is None else at) or []

    def by_run(self, query: str, start: float, end: float, moments: int) -> dict[str, dict[float, float]]:
        return {
            series["metric"].get("run", ""): {float(at): float(value) for at, value in series["values"]}
            for series in self.span(query, start, end, moments)
        }

    def span(self, query: str, start: float, end: float, moments: int) -> list[Any]:
        return self.moments(query, start, end, max(1.0, (end - start) / moments)) or []

    def moments(self, query: str, start: float, end: float, width: float) -> list[Any] | None:
        """Return the values of all series at times `width` seconds apart, or None if the query failed."""
        return self._query("/api/v1/query_range", query, start=start, end=end, step=width)

    def _query(self, path: str, query: str, **times: float) -> list[Any] | None:
        params = {name: f"{seconds:.3f}" for name, seconds in times.items()}
        try:
            found = list(self._server.get(path, query=query, **params)["data"]["result"])
        except (NoAnswer, KeyError, TypeError) as error:
            why = message("dashboard.prometheus_silent", error=str(error))
            with self._lock:
                self._failed[query] = (self._clock(), why)
            return None
        with self._lock:
            self._failed.pop(query, None)
        return found


T = TypeVar("T")


class Remembered(Generic[T]):
    """A cache of results by name. It keeps the `MOST_NAMES` newest results for a limited time."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._kept: dict[str, tuple[float, T]] = {}

    def get(self, name: str) -> T | None:
        at, answer = self._kept.get(name, (-math.inf, None))
        return answer if 0 <= self._clock() - at <= self._seconds else None

    def keep(self, name: str, value: T) -> T:
        while len(self._kept) > MOST_NAMES:
            self._kept.pop(next(iter(self._kept)), None)
        self._kept[name] = (self._clock(), value)
        return value


Labels = tuple[tuple[str, str], ...]
Points = tuple[Floats, Floats]  #: Unix seconds, and the values at these times
FetchRange = Callable[[str, float, float, float], "list[Any] | None"]  #: query, start, end, width

_LATE_SECONDS = 60.0  #: a value can reach the server this many seconds late, so this span is requeried
_SAME_SECONDS = 0.5  #: seconds to reuse a result, because a page repeats a query for many lines
_MOST_KEPT = 256  #: maximum number of cached queries, enough for several dozen pages


@dataclass(frozen=True)
class _Answer:
    first: float
    width: float
    until: float
    points: dict[Labels, Points]


class Ranges:
    """A thread-safe cache of range-query results. It queries only new points."""

    def __init__(self, fetch: FetchRange) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._kept: dict[str, _Answer] = {}

    def points(self, query: str, start: float, end: float, moments: int) -> dict[Labels, Points]:
        """Return at most `moments` points of each series between the two times, or {} if the query failed."""
        width = max(1.0, 2.0 ** math.ceil(math.log2(max(end - start, 1.0) / moments)))
        first = math.ceil(start / width) * width
        with self._lock:
            kept = self._kept.get(query)
        if kept is None or (kept.first, kept.width) != (first, width) or kept.until > end:
            kept = _Answer(first, width, first, {})
        elif end - kept.until < _SAME_SECONDS:
            return kept.points
        begin = max(first, math.floor((kept.until - _LATE_SECONDS) / width) * width)
        if end < begin:  # no complete interval yet
            return {}
        found = self._fetch(query, begin, end, width)
        if found is None:
            return {}
        points = {labels: _before(line, begin) for labels, line in kept.points.items()}
        for series in found:
            labels = tuple(sorted(series["metric"].items()))
            points[labels] = _joined(points.get(labels), series["values"])
        with self._lock:
            self._kept.pop(query, None)
            self._kept[query] = _Answer(first, width, end, points)  # the newest query is deleted last
            while len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return points


def _before(points: Points, end: float) -> Points:
    until = int(np.searchsorted(points[0], end))
    return points[0][:until], points[1][:until]


def _joined(points: Points | None, values: list[Any]) -> Points:
    """Return the known points, followed by the points of a query's result."""
    times = np.array([at for at, _ in values], "float64")
    # The server sends values as strings such as "0.5", "NaN", or "+Inf".
    numbers = np.array([float(text) for _, text in values], "float64")
    if points is None or not len(points[0]):
        return times, numbers
    return np.concatenate([points[0], times]), np.concatenate([points[1], numbers])
