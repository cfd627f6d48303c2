"""Prometheus reads the last word of a run before its endpoint goes: else it would only see it vanish.

A scraper reads every few seconds. An incident that opens as the command ends would never be read by anyone,
and a run that finished would look like one whose agent died.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

WSGIApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

# Sent with every scrape by Prometheus 2 (scrape/scrape.go) and by those that share its code or follow
# it: vmagent, Grafana Alloy, the OpenTelemetry collector. People and dashboards do not send it.
_SCRAPER = "HTTP_X_PROMETHEUS_SCRAPE_TIMEOUT_SECONDS"
_GAPS = 5
_LATE = 1.5  # a scraper may be late by half an interval, and a second
_GRACE = 1.0


class Scrapes:
    """Wraps the endpoint's application and remembers when scrapers came."""

    def __init__(self, app: WSGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._changed = threading.Condition()
        self._began: deque[float] = deque(maxlen=_GAPS)
        self._served: float = float("-inf")  # when the newest scrape that was answered had begun

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer as the wrapped application does."""
        if _SCRAPER not in environ:
            return self._app(environ, start_response)
        began = self._clock()
        body = list(self._app(environ, start_response))
        with self._changed:
            self._began.append(began)
            self._served = max(self._served, began)
            self._changed.notify_all()
        return body

    def patience(self, limit: float) -> float:
        """How long the next scrape may take to come, in seconds; at most `limit`, 0 where nobody scrapes."""
        with self._changed:
            began = list(self._began)
        if not began:
            return 0.0
        gaps = [later - earlier for earlier, later in pairwise(began)]
        if not gaps:
            return limit
        wait = _LATE * max(gaps) + _GRACE
        # Who has not come for so long will not come now.
        return max(0.0, min(limit, began[-1] + wait - self._clock()))

    def wait_for_one(self, limit: float) -> bool:
        """Wait until a scrape that began after this call was answered; whether one was."""
        asked = self._clock()
        patience = self.patience(limit)
        with self._changed:
            return self._changed.wait_for(lambda: self._served >= asked, patience)
