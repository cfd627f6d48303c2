"""Ping a monitoring service while Stallwatch works. If the pings stop, the service raises an alert.

The URL belongs to a check at healthchecks.io or a compatible service. A request to the URL itself means
success, ``/start`` means that a run began, and ``/fail`` means that the run failed
(healthchecks.io/docs/http_api).
"""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from stallwatch_alerts.masking import hide_secrets, mask_url
from stallwatch_exporter.incident import Incident
from stallwatch_rules.locale import duration_text

Signal = Literal["start", "ok", "fail"]
_TIMEOUT = 10.0
_SILENT_SECONDS = 30.0  # seconds without a check of the run after which no ping is sent


class Deadman:
    """A dead man's switch that pings `url` every `seconds` seconds while `blind` returns "".

    The pinging thread calls `blind`, which returns the reason why monitoring does not work, or "" if it
    works. The thread passes each new problem to `report` once, without the secret in the URL.
    """

    def __init__(
        self,
        url: str,
        blind: Callable[[], str],
        *,
        seconds: float = 60.0,
        report: Callable[[str], None] = lambda _: None,
        ping: Callable[[str, Signal], None] | None = None,
    ) -> None:
        self._url = url
        self._blind = blind
        self._seconds = seconds
        self._report = report
        self._ping = ping or ping_healthchecks
        self._reported = ""
        self._ended = threading.Event()
        self._last: Signal | None = None
        self._thread = threading.Thread(target=self._run, name="stallwatch-deadman", daemon=True)
        self._thread.start()

    def close(self, last: Signal | None, timeout: float = _TIMEOUT) -> None:
        """Within `timeout` seconds in total, stop pinging and, if `last` is not `None`, send this signal."""
        self._last = last
        self._ended.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        self._signal("start")
        while True:
            self._look()
            if self._ended.wait(self._seconds):
                break
        if self._last is not None:
            self._signal(self._last)

    def _look(self) -> None:
        try:
            wrong = self._blind()
        except Exception as error:  # an exception in `blind` counts as a problem
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            self._warn(f"no ping is sent to the dead man's switch: {wrong}")
        else:
            self._signal("ok")

    def _signal(self, signal: Signal) -> None:
        try:
            self._ping(self._url, signal)
        except Exception as error:
            reason = hide_secrets(str(error), self._url)
            self._warn(f"the dead man's switch at {mask_url(self._url)} cannot be reached: {reason}")
        else:
            self._reported = ""

    def _warn(self, text: str) -> None:
        if text != self._reported:
            self._reported = text
            with contextlib.suppress(Exception):
                self._report(text)


def ping_healthchecks(url: str, signal: Signal) -> None:
    """Send one signal to the check's URL. Raise `OSError` if the service does not accept it."""
    parts = urlsplit(url)
    path = parts.path if signal == "ok" else f"{parts.path.rstrip('/')}/{signal}"
    address = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
    request = urllib.request.Request(address, headers={"User-Agent": "stallwatch"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        answer.read()


class DeadmanSink:
    """A dead man's switch that sends pings as long as an agent calls ``alive`` about once a second."""

    def __init__(
        self,
        url: str,
        *,
        seconds: float = 60.0,
        report: Callable[[str], None] = lambda _: None,
        ping: Callable[[str, Signal], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._contact_at = clock()
        self._problem = ""
        self._failed = False
        self._deadman = Deadman(url, self.blind, seconds=seconds, report=report, ping=ping)

    def __call__(self, incident: Incident) -> None:
        """Record whether the incident means that the run failed. If so, `close` sends the signal "fail"."""
        if incident.kind == "ended":
            self._failed = True

    def alive(self, problem: str) -> None:
        """Record that the agent checked its run.

        `problem` is the reason why the agent could not check the run, or "" if the check succeeded.
        """
        self._contact_at, self._problem = self._clock(), problem

    def blind(self) -> str:
        """Return the reason why the agent cannot monitor the run, or "" if monitoring works."""
        silent = self._clock() - self._contact_at
        if silent > _SILENT_SECONDS:
            return f"the agent has not checked the run for {duration_text(silent)}"
        return self._problem

    def close(self, timeout: float) -> None:
        """Send the final signal: "fail" if the run failed, otherwise "ok"."""
        self._deadman.close("fail" if self._failed else "ok", timeout)
