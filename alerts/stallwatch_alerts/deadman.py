"""A dead-man's switch: pings that stop when we cannot see, so that somebody else notices.

The address is that of a healthchecks.io check or of anything that follows it: a request to it says "all is
well", to ``/start`` that a run began, to ``/fail`` that it went wrong (healthchecks.io/docs/http_api).
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

Signal = Literal["start", "ok", "fail"]
_TIMEOUT = 10.0
_SILENT_SECONDS = 30.0  # an agent that was not heard for so long hangs, or is stopped


class Deadman:
    """Pings `url` every `seconds` for as long as `blind` has nothing to say.

    `blind` returns why we cannot see, "" if we can; it is called from the thread that pings. What goes
    wrong is reported to `report` when it begins, without the secret in the address.
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
        """Stop, after one more signal where `last` names one; it has `timeout` seconds to leave."""
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
        except Exception as error:  # who cannot tell whether it sees does not see
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            self._say(f"the dead-man's switch gets no ping: {wrong}")
        else:
            self._signal("ok")

    def _signal(self, signal: Signal) -> None:
        try:
            self._ping(self._url, signal)
        except Exception as error:
            reason = hide_secrets(str(error), self._url)
            self._say(f"the dead-man's switch at {mask_url(self._url)} cannot be reached: {reason}")
        else:
            self._reported = ""

    def _say(self, text: str) -> None:
        if text != self._reported:
            self._reported = text
            with contextlib.suppress(Exception):
                self._report(text)


def ping_healthchecks(url: str, signal: Signal) -> None:
    """One request; an `OSError` where it was not taken."""
    parts = urlsplit(url)
    path = parts.path if signal == "ok" else f"{parts.path.rstrip('/')}/{signal}"
    address = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
    request = urllib.request.Request(address, headers={"User-Agent": "stallwatch"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        answer.read()


class DeadmanSink:
    """The agent's switch: a sink that hears once a second that the agent is ``alive``, and pings as long."""

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
        self._heard = clock()
        self._problem = ""
        self._failed = False
        self._deadman = Deadman(url, self.blind, seconds=seconds, report=report, ping=ping)

    def __call__(self, incident: Incident) -> None:
        """A run that ended badly ends with the signal for it."""
        if incident.kind == "ended":
            self._failed = True

    def alive(self, problem: str) -> None:
        """The agent looked at its run; `problem` is what it could not see, or empty."""
        self._heard, self._problem = self._clock(), problem

    def blind(self) -> str:
        """Why the agent does not see; "" where it does."""
        silent = self._clock() - self._heard
        if silent > _SILENT_SECONDS:
            return f"the agent has not looked at the run for {silent:.0f} s"
        return self._problem

    def close(self, timeout: float) -> None:
        """The run is over: say how."""
        self._deadman.close("fail" if self._failed else "ok", timeout)
