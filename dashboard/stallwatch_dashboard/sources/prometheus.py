"""The numbers of all runs from a Prometheus, or whatever speaks its API, asked as the embedded store is."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from stallwatch_alerts.prometheus.asking import NoAnswer, Prometheus
from stallwatch_dashboard.overview import Numbers
from stallwatch_dashboard.sources.glances import METRICS, Latest, Which, glance
from stallwatch_dashboard.sources.pulses import MOST_LOSSES, Pulse, pulse_of
from stallwatch_dashboard.sources.ranges import Ranges

_DAY = 86400.0
_LOOK_BACK = 30 * _DAY  #: how far a run's beginning is looked for
_HISTORY_SECONDS = 60.0  #: how long what is asked of the past stays true enough
_PULSE_POINTS = 60
_FEW_POINTS, _MANY_POINTS = 400, 120  #: moments of a chart; and of one that has a series a rank
_PRESENT = "stallwatch_log_lines_total"  #: every agent has it from its first moment on
_OWN = ("__name__", "run", "rank", "instance", "job")


class PrometheusStore:
    """Asks, for what is past once. A server that is gone is told on the page."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        self.problem: str | None = None
        self._server = Prometheus(url)
        self._clock = clock
        self._lock = threading.Lock()
        self._ranges = Ranges(self._moments)
        self._first: dict[str, float] = {}
        self._past: tuple[float, dict[str, float]] = (-math.inf, {})
        self._pulses: tuple[float, dict[str, Pulse]] = (-math.inf, {})
        self._ended: dict[str, Latest] = {}  # the last numbers of runs that are no longer scraped

    def series(
        self, run: str, metric: str, *, since: float | None = None, points: int = 1200
    ) -> pd.DataFrame:
        """One metric of one run, at moments evenly apart, and now."""
        now = self._clock()
        start = since if since is not None else self.first_seen(run)
        if start is None:
            return _frame([])
        moments = _MANY_POINTS if points > 1200 else _FEW_POINTS
        selector = f"{metric}{{run={_quoted(run)}}}"
        found: dict[Which, list[tuple[float, str]]] = defaultdict(list)
        for labels, told in self._ranges.points(selector, start, now, moments).items():
            found[_which(dict(labels))] += told  # of an agent that was started again there are several
        for one in self._instant(selector):  # moments lie apart, and the last one before now
            at, value = one["value"]
            found[_which(one["metric"])].append((float(at), value))
        return _frame([(which, sorted(told)) for which, told in found.items()])

    def latest(self, run: str, metric: str) -> dict[Which, float]:
        """The newest value of every series of one metric, also of a run that is no longer scraped."""
        selector = f"{metric}{{run={_quoted(run)}}}"
        found = self._instant(selector) or self._instant(f"last_over_time({selector}[1d])")
        return {_which(one["metric"]): _value(one["value"][1]) for one in found}

    def glances(self, runs: Iterable[str], now: float) -> dict[str, Numbers]:
        """One question for what is now, and one a minute for the past."""
        every = self._all_latest()
        pulses = self._all_pulses()
        found = {}
        for run in runs:
            told = every.get(run) or self._last_words(run)
            found[run] = glance(told, pulses.get(run, Pulse()), now=now)
        return found

    def last_seen(self) -> dict[str, float]:
        """Of the runs of the last day; those under way are asked for each time."""
        asked, past = self._past
        if self._clock() - asked > _HISTORY_SECONDS:
            question = f"max by (run) (max_over_time(timestamp({_PRESENT})[1d:5m]))"
            past = {one["metric"].get("run", ""): float(one["value"][1]) for one in self._instant(question)}
            self._past = (self._clock(), past)
        now = self._instant(f"max by (run) (timestamp({_PRESENT}))")
        seen = {**past, **{one["metric"].get("run", ""): float(one["value"][1]) for one in now}}
        seen.pop("", None)
        return seen

    def first_seen(self, run: str) -> float | None:
        """Found by looking closer twice; then remembered."""
        with self._lock:
            if run in self._first:
                return self._first[run]
        now = self._clock()
        start, span, found = now - _LOOK_BACK, _LOOK_BACK, None
        for _ in range(3):
            told = self._range(f"{_PRESENT}{{run={_quoted(run)}}}", start, min(now, start + span), 1000)
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
        """Nothing is held."""

    def _all_latest(self) -> dict[str, dict[str, dict[Which, float]]]:
        names = "|".join(f"stallwatch_{name}" for name in METRICS)
        kept = "run, __name__, stallwatch_phase, phase, ending"
        found: dict[str, dict[str, dict[Which, float]]] = defaultdict(lambda: defaultdict(dict))
        for one in self._instant(f'max by ({kept}) ({{__name__=~"{names}"}})'):
            labels = one["metric"]
            name = labels["__name__"].removeprefix("stallwatch_")
            found[labels.get("run", "")][name][_which(labels)] = _value(one["value"][1])
        return found

    def _last_words(self, run: str) -> Latest:
        """Of a run that is no longer scraped: asked once."""
        if run not in self._ended:
            told: dict[str, dict[Which, float]] = {}
            for name in METRICS:
                if values := self.latest(run, f"stallwatch_{name}"):
                    told[name] = values
            self._ended[run] = told
        return self._ended[run]

    def _all_pulses(self) -> dict[str, Pulse]:
        asked, known = self._pulses
        now = self._clock()
        if now - asked <= _HISTORY_SECONDS:
            return known
        start = now - _DAY
        losses = self._by_run("min by (run) (stallwatch_loss)", start, now, 2 * MOST_LOSSES)
        sums = self._by_run("max by (run) (stallwatch_step_duration_seconds_sum)", start, now, _PULSE_POINTS)
        counts = self._by_run(
            "max by (run) (stallwatch_step_duration_seconds_count)", start, now, _PULSE_POINTS
        )
        pulses = {}
        for run in losses.keys() | sums.keys():
            steps = [
                (seconds, counts[run][at])
                for at, seconds in sums.get(run, {}).items()
                if at in counts.get(run, {})
            ]
            times = [*losses.get(run, {}), *sums.get(run, {})]
            pulses[run] = pulse_of(losses.get(run, {}).values(), steps, min(times, default=None))
        self._pulses = (now, pulses)
        return pulses

    def _by_run(self, question: str, start: float, end: float, moments: int) -> dict[str, dict[float, float]]:
        return {
            one["metric"].get("run", ""): {float(at): _value(value) for at, value in one["values"]}
            for one in self._range(question, start, end, moments)
        }

    def _instant(self, question: str) -> list[Any]:
        return self._asked("/api/v1/query", query=question, time=f"{self._clock():.3f}") or []

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


def _frame(told: list[tuple[Which, list[tuple[float, str]]]]) -> pd.DataFrame:
    """By rank, what has none last; then by labels and time, as the answers come."""
    told = sorted(told, key=lambda one: (one[0][0] is None, one[0][0] or 0, one[0][1]))
    many = [len(values) for _, values in told]
    ranks = np.repeat([-1 if rank is None else rank for (rank, _), _ in told], many).astype("int64")
    labels = np.repeat(np.array([text for (_, text), _ in told], "object"), many)
    points = [point for _, values in told for point in values]
    times = np.array([time for time, _ in points], "float64")
    numbers = np.array([text for _, text in points], "U").astype("float64")
    known = pd.arrays.IntegerArray(ranks, ranks < 0)
    return pd.DataFrame({"rank": known, "labels": labels, "t": times, "v": numbers})


def _value(text: str) -> float:
    return float(text.replace("Inf", "inf"))


def _quoted(text: str) -> str:
    """A label's value in a question. Go's quotes read the same escapes as JSON's."""
    return json.dumps(text, ensure_ascii=False)
