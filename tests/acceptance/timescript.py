"""Time scripts for tests: run an action at a time, expect a condition between two times.

The idea is from the acceptance tests of Alertmanager, with ``At(1, …)`` and ``Between(2, 2.5)``. Times are
seconds since the start of the script. An expectation fails if it is met too early or too late. If the machine
pauses this process, it pauses others too, so expectations may be met later by the same time. A slow answer of
a server does not extend the limits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_LOOK = 0.05
_PROMPT = 0.25  # latest tick on a machine with spare capacity


@dataclass
class _Expectation:
    start: float
    end: float
    what: str
    met: Callable[[], Any]
    met_at: float | None = None
    paused: float = 0.0  #: seconds since `start` for which the machine paused this process


class Pauses:
    """Counter of the time for which the machine paused this process, measured by late ticks."""

    def __init__(self, now: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._ticked = now
        self._sum = 0.0

    def tick(self, now: float) -> None:
        """Record a tick; call this as often as possible."""
        with self._lock:
            self._sum += max(0.0, now - self._ticked - _PROMPT)
            self._ticked = now

    def seconds(self, now: float) -> float:
        """Return the paused seconds up to now, including the current tick if it is late."""
        with self._lock:
            return self._sum + max(0.0, now - self._ticked - _PROMPT)

    @contextmanager
    def ticking(self, began: float) -> Iterator[None]:
        """Tick in a separate thread, which waits for no server."""
        over = threading.Event()

        def tick() -> None:
            while not over.wait(_LOOK):
                self.tick(time.monotonic() - began)

        thread = threading.Thread(target=tick, name="pauses", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@dataclass
class Script:
    """Steps with their times; ``run`` plays them in real time. The script can be filled again afterwards."""

    _acts: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _expected: list[_Expectation] = field(default_factory=list)

    def at(self, when: float, act: Callable[[], None]) -> Script:
        """Run an action at a time."""
        self._acts.append((when, act))
        return self

    def between(self, start: float, end: float, what: str, met: Callable[[], Any]) -> Script:
        """Expect `met` to become true not before `start` and not after `end`."""
        self._expected.append(_Expectation(start, end, what, met))
        return self

    def run(self, settle: float = 0.0) -> dict[str, float]:
        """Play the script and `settle` more seconds; return the times of the met expectations."""
        began = time.monotonic()
        pauses = Pauses()
        with pauses.ticking(began):
            return self._play(began, pauses, settle)

    def _play(self, began: float, pauses: Pauses, settle: float) -> dict[str, float]:
        done_at: float | None = None
        paused = 0.0
        while True:
            now = time.monotonic() - began
            before, paused = paused, pauses.seconds(now)
            self._note_pause(now, paused - before)
            for due in sorted((act for act in self._acts if act[0] <= now), key=lambda act: act[0]):
                self._acts.remove(due)
                due[1]()
            for entry in self._expected:
                if entry.met_at is None and entry.met():
                    entry.met_at = now
                    assert now >= entry.start, f"{entry.what}: met at {now:.1f} s, before {entry.start} s"
                assert entry.met_at is not None or now <= entry.end + entry.paused, (
                    f"{entry.what}: not met by {entry.end} s"
                )
            if done_at is None and not self._acts and all(item.met_at is not None for item in self._expected):
                done_at = now
            if done_at is not None and now >= done_at + settle:
                break
            time.sleep(_LOOK)
        met = {item.what: item.met_at for item in self._expected if item.met_at is not None}
        self._expected.clear()
        return met

    def _note_pause(self, now: float, seconds: float) -> None:
        for item in self._expected:
            if seconds > 0 and now > item.start:
                item.paused += min(seconds, now - item.start)
