"""Runs that a Prometheus scrapes no more: their last sign and their last numbers, each asked for once.

A run may come back. What is known of it is forgotten when it is there, and all that is known when nobody
looked for a while: meanwhile a run may have come back and ended again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection

from stallwatch_dashboard.sources.answers import by_metric
from stallwatch_dashboard.sources.glances import METRICS, Latest
from stallwatch_dashboard.sources.promql import among, is_run, newest, portions
from stallwatch_dashboard.sources.questions import Questions

PRESENT = "stallwatch_log_lines_total"  #: every agent has it from its first moment on
DAY = 86400.0
HISTORY_SECONDS = 60.0  #: how long what is asked of the past stays true enough


class Departed:
    """Safe for several threads. Times are Unix seconds."""

    def __init__(self, questions: Questions, clock: Callable[[], float]) -> None:
        self._questions = questions
        self._clock = clock
        self._lock = threading.Lock()
        self._looked = -math.inf
        self._past = -math.inf  # when the runs of the last day were asked for
        self._seen: dict[str, float] = {}  # when each run was last there, while somebody looked
        self._gone: dict[str, float] = {}  # the last sign of those that are not there
        self._ended: dict[str, Latest] = {}  # and their last numbers

    def last_seen(self) -> dict[str, float]:
        """Of the runs of the last day; those under way are asked for each time."""
        self._look()
        day = None
        if not 0 <= self._clock() - self._past <= HISTORY_SECONDS:
            question = f"group by (run) (last_over_time({PRESENT}[1d]))"
            day = self._questions.askers.submit(self._questions.instant, question)
        now = {
            one["metric"].get("run", ""): float(one["value"][1])
            for one in self._questions.instant(f"max by (run) (timestamp({PRESENT}))")
        }
        with self._lock:
            self._gone = {run: at for run, at in self._gone.items() if run not in now}
            known = dict(self._gone)
            self._seen |= now
        if day is not None and (told := day.result()):
            names = {one["metric"].get("run", "") for one in told}
            found = self._when_gone(sorted(names - now.keys() - known.keys() - {""}))
            with self._lock:
                self._seen = {run: at for run, at in self._seen.items() if run in names or run in now} | found
                self._gone = {run: at for run, at in self._gone.items() if run in names}
                self._past = self._clock()
        with self._lock:
            return {run: at for run, at in self._seen.items() if run}

    def numbers(self, runs: Collection[str], there: Collection[str]) -> dict[str, Latest]:
        """The last numbers of those of these runs that are not there, as far as there are any."""
        self._look()
        with self._lock:
            self._ended = {run: told for run, told in self._ended.items() if run not in there}
            known = dict(self._ended)
        asked = [run for run in runs if run not in there and run not in known]
        found: dict[str, Latest] = {}
        for some in portions(asked):
            told = by_metric(self._questions.instant(newest(METRICS, among(some), "[1d]")))
            found |= {run: told[run] for run in some if run in told}
        with self._lock:
            self._ended |= found
        return known | found

    def _look(self) -> None:
        now = self._clock()
        with self._lock:
            if not 0 <= now - self._looked <= HISTORY_SECONDS:
                self._past, self._gone, self._ended = -math.inf, {}, {}
            self._looked = now

    def _when_gone(self, runs: list[str]) -> dict[str, float]:
        """The last sign of each of these runs, which are scraped no more.

        In two steps: to ask for the time of each number of a whole day takes Prometheus 9 ms a run (2.42).
        """
        now, found = self._clock(), {}
        for some in portions(runs):
            question = f"max by (run) ({PRESENT}{{{among(some)}}})"
            found.update(self._questions.by_run(question, now - DAY, now, int(DAY / 290)))
        last = {run: max(moments) for run, moments in found.items() if moments}

        def when(run: str) -> float | None:
            told = self._questions.instant(f"max(timestamp({PRESENT}{{{is_run(run)}}}))", last[run])
            return float(told[0]["value"][1]) if told else None

        exact = dict(zip(last, self._questions.askers.map(when, last), strict=True))
        with self._lock:
            self._gone |= {run: at for run, at in exact.items() if at is not None}
        return {run: last[run] if at is None else at for run, at in exact.items()}
