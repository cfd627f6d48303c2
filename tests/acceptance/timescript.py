"""What happens when, as a script: at a moment do something, between two moments expect something.

After the acceptance tests of Alertmanager, where a test says ``At(1, …)`` and ``Between(2, 2.5)``. Times are
seconds since the script began; an expectation that is met too early fails as one that is met too late does.
A machine that lets this process stand lets others stand: what is expected may come later by as much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_LOOK = 0.05
_PROMPT = 0.25  # a look and the wait for the next one take no longer on a machine that has time for us


@dataclass
class _Expectation:
    start: float
    end: float
    what: str
    met: Callable[[], Any]
    met_at: float | None = None
    stood: float = 0.0  #: seconds that this process was kept from looking since `start`


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
        done_at: float | None = None
        looked = 0.0
        while True:
            now = time.monotonic() - began
            self._stood(now, now - looked - _PROMPT)
            looked = now
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
