"""What happens when, as a script: at a moment do something, between two moments expect something.

After the acceptance tests of Alertmanager, where a test says ``At(1, …)`` and ``Between(2, 2.5)``. Times are
seconds since the script began; an expectation that is met too early fails as one that is met too late does.
A machine that lets this process stand lets others stand: what is expected may come later by as much. That a
server is slow to answer gives it no more time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_LOOK = 0.05
_PROMPT = 0.25  # a tick comes no later on a machine that has time for us


@dataclass
class _Expectation:
    start: float
    end: float
    what: str
    met: Callable[[], Any]
    met_at: float | None = None
    stood: float = 0.0  #: seconds that the machine let this process stand since `start`


class Standing:
    """How long the machine let this process stand, as far as the ticks of a clock that came late tell."""

    def __init__(self, now: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._ticked = now
        self._sum = 0.0

    def tick(self, now: float) -> None:
        """Called as often as the machine allows."""
        with self._lock:
            self._sum += max(0.0, now - self._ticked - _PROMPT)
            self._ticked = now

    def seconds(self, now: float) -> float:
        """Until now, with a tick that is late already."""
        with self._lock:
            return self._sum + max(0.0, now - self._ticked - _PROMPT)

    @contextmanager
    def ticking(self, began: float) -> Iterator[None]:
        """Tick in a thread of its own, which waits for no server."""
        over = threading.Event()

        def tick() -> None:
            while not over.wait(_LOOK):
                self.tick(time.monotonic() - began)

        thread = threading.Thread(target=tick, name="standing", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@dataclass
class Script:
    """Steps by their times; ``run`` plays them against the real clock. It may be filled anew afterwards."""

    _acts: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _expected: list[_Expectation] = field(default_factory=list)

    def at(self, when: float, act: Callable[[], None]) -> Script:
        """Do something at that moment."""
        self._acts.append((when, act))
        return self

    def between(self, start: float, end: float, what: str, met: Callable[[], Any]) -> Script:
        """Expect `met` to become true not before `start` and not after `end`."""
        self._expected.append(_Expectation(start, end, what, met))
        return self

    def run(self, settle: float = 0.0) -> dict[str, float]:
        """Play it, and `settle` seconds more: when each expectation was met. An act may add to the script."""
        began = time.monotonic()
        standing = Standing()
        with standing.ticking(began):
            return self._play(began, standing, settle)

    def _play(self, began: float, standing: Standing, settle: float) -> dict[str, float]:
        done_at: float | None = None
        stood = 0.0
        while True:
            now = time.monotonic() - began
            before, stood = stood, standing.seconds(now)
            self._stood(now, stood - before)
            for due in sorted((one for one in self._acts if one[0] <= now), key=lambda one: one[0]):
                self._acts.remove(due)
                due[1]()
            for one in self._expected:
                if one.met_at is None and one.met():
                    one.met_at = now
                    assert now >= one.start, f"{one.what}: met at {now:.1f} s, before {one.start} s"
                assert one.met_at is not None or now <= one.end + one.stood, (
                    f"{one.what}: not met by {one.end} s"
                )
            if done_at is None and not self._acts and all(one.met_at is not None for one in self._expected):
                done_at = now
            if done_at is not None and now >= done_at + settle:
                break
            time.sleep(_LOOK)
        met = {one.what: one.met_at for one in self._expected if one.met_at is not None}
        self._expected.clear()
        return met

    def _stood(self, now: float, seconds: float) -> None:
        for one in self._expected:
            if seconds > 0 and now > one.start:
                one.stood += min(seconds, now - one.start)
