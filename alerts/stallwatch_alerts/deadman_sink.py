"""The agent's dead-man's switch: it hears from the agent once a second, and pings for as long as it does."""

from __future__ import annotations

import time
from collections.abc import Callable

from stallwatch_alerts.deadman import Deadman, Signal
from stallwatch_exporter.incident import Incident

_SILENT_SECONDS = 30.0  # an agent that was not heard for so long hangs, or is stopped


class DeadmanSink:
    """A sink that the agent tells, beside incidents, that it is ``alive``."""

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
        """The agent looked at its run; `problem` tells what it could not see, "" for nothing."""
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
