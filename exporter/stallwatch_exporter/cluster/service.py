"""Run ``stallwatch coordinator``, which receives and merges the reports of any number of runs on one port."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence

from stallwatch_exporter import steady
from stallwatch_exporter.cluster.client import FIRST_PORT
from stallwatch_exporter.cluster.coordinator import Coordinator
from stallwatch_exporter.cluster.host import host_id
from stallwatch_exporter.cluster.member import LEAVING_SECONDS, LOOK_SECONDS
from stallwatch_exporter.cluster.secrets import Secret
from stallwatch_exporter.cluster.server import OtherHosts, listen
from stallwatch_exporter.incident import Sink
from stallwatch_exporter.settings import JoinSettings

PORT = FIRST_PORT - 1 + 1000  #: 20401; no agent listens on this port
_STEP_SECONDS = 1.0
_MOST_CONNECTIONS = 2048


class CoordinatorService:
    """Server that merges the reports of many runs. The coordinator of each run reports to all `sinks`."""

    def __init__(
        self,
        join: JoinSettings,
        secret: Secret,
        sinks: Sequence[Sink],
        *,
        notice: Callable[[str], None],
        clock: Callable[[], float] = steady.now,
    ) -> None:
        """Listen at `join.host` and `join.port`. Raises `OSError` if that address is not available."""
        own_id = host_id(socket.gethostname())
        self._name = f"{own_id}-{os.getpid()}-{int(time.time())}"
        self._sinks = sinks
        self._notice = notice
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, Coordinator] = {}
        self._announced: set[str] = set()
        self._closing = threading.Event()
        gate = OtherHosts(secret.text, self._name, own_id, self._run, notice)
        self._server = listen(gate, join.host, [join.port or PORT], secret.server, _MOST_CONNECTIONS)
        self._thread = threading.Thread(target=self._step, name="stallwatch coordinator", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Port on which the service listens."""
        return self._server.port

    def close(self) -> None:
        """Wait until all changes are sent and the agents know about them, and then stop serving and merging.

        If an agent does not know that a change was sent, the next coordinator reports the change again.
        """
        end = time.monotonic() + LEAVING_SECONDS
        while time.monotonic() < end and not all(run.is_settled and run.is_known for _, run in self._all()):
            self._closing.wait(LOOK_SECONDS)
        self._server.close()
        self._closing.set()
        self._thread.join(_STEP_SECONDS)

    def _run(self, key: str) -> Coordinator:
        with self._lock:
            if key not in self._runs:
                self._runs[key] = Coordinator(
                    self._sinks, name=self._name, clock=self._clock, notice=self._notice
                )
            return self._runs[key]

    def _all(self) -> list[tuple[str, Coordinator]]:
        with self._lock:
            return list(self._runs.items())

    def _step(self) -> None:
        while not self._closing.wait(_STEP_SECONDS):
            for key, run in self._all():
                try:
                    run.step()
                    if key not in self._announced and (name := run.run):
                        self._announced.add(key)
                        self._notice(f"the agents of the run {name} now report to this coordinator")
                    if run.is_over:
                        self._announced.discard(key)
                        with self._lock:
                            self._runs.pop(key, None)
                except Exception as error:
                    self._notice(
                        f"the reports of a run could not be merged ({type(error).__name__}: {error})"
                    )
