"""Questions to a Prometheus, at a moment and over a span, and which of them went without an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stallwatch_alerts.prometheus.asking import NoAnswer, Prometheus

_AT_ONCE = 4  #: questions: a server of two processors is not asked more
_TOLD_SECONDS = 90.0  #: what a page asks, it asks again at least once a minute


class Questions:
    """Safe for several threads. Times are Unix seconds. Without an answer there is nothing in it, or None."""

    def __init__(self, server: Prometheus, clock: Callable[[], float]) -> None:
        self._server = server
        self._clock = clock
        self._lock = threading.Lock()
        self._failed: dict[str, tuple[float, str]] = {}  # when, and why, by question
        self.askers = ThreadPoolExecutor(_AT_ONCE, "prometheus")

    @property
    def problem(self) -> str | None:
        """Why numbers are missing: of the questions that had no answer when they were last asked."""
        now = self._clock()
        with self._lock:
            self._failed = {
                question: told
                for question, told in self._failed.items()
                if abs(now - told[0]) <= _TOLD_SECONDS
            }
            return max(self._failed.values())[1] if self._failed else None

    def close(self) -> None:
        """Ask no more."""
        self.askers.shutdown(wait=False, cancel_futures=True)

    def instant(self, question: str, at: float | None = None) -> list[Any]:
        """The series at that moment, or now."""
        return self.answer(question, at) or []

    def answer(self, question: str, at: float | None = None) -> list[Any] | None:
        """The same, and None without an answer."""
        return self._asked("/api/v1/query", question, time=self._clock() if at is None else at)

    def by_run(self, question: str, start: float, end: float, moments: int) -> dict[str, dict[float, float]]:
        """The values of each run by their times."""
        return {
            one["metric"].get("run", ""): {float(at): float(value) for at, value in one["values"]}
            for one in self.span(question, start, end, moments)
        }

    def span(self, question: str, start: float, end: float, moments: int) -> list[Any]:
        """The series at so many moments."""
        return self.moments(question, start, end, max(1.0, (end - start) / moments)) or []

    def moments(self, question: str, start: float, end: float, width: float) -> list[Any] | None:
        """The series at moments so far apart; None without an answer."""
        return self._asked("/api/v1/query_range", question, start=start, end=end, step=width)

    def _asked(self, path: str, question: str, **times: float) -> list[Any] | None:
        told = {name: f"{seconds:.3f}" for name, seconds in times.items()}
        try:
            found = list(self._server.get(path, query=question, **told)["data"]["result"])
        except (NoAnswer, KeyError, TypeError) as error:
            why = f"Prometheus does not answer, so numbers are missing: {error}"
            with self._lock:
                self._failed[question] = (self._clock(), why)
            return None
        with self._lock:
            self._failed.pop(question, None)
        return found
