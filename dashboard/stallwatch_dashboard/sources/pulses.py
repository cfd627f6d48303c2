"""What a row tells of a run's history: the course of its loss and the pace of its steps, then and now.

A bounded window per run is kept in memory. It is filled by one query when the dashboard starts and from then
on takes only what is new, so a refresh costs the same after an hour and after a month.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

MOST_LOSSES = 40
_BASELINE_STEPS = 20  #: spans of steps that make the baseline; the very first, which compiles, is left out
_RECENT_STEPS = 5


@dataclass(frozen=True)
class Pulse:
    """One run's history in a few numbers."""

    losses: tuple[float, ...] = ()
    recent: float | None = None  #: median seconds a step, lately
    baseline: float | None = None  #: the same of the run's own early steps
    started_at: float | None = None  #: time of the first number


@dataclass
class Window:
    """The bounded history of one run. Times are Unix seconds and must not go back."""

    started_at: float | None = None
    _losses: list[float] = field(default_factory=list)
    _stride: int = 1  #: every so many losses, one is kept
    _skipped: int = 0
    _last_loss: float | None = None
    _counted: tuple[float, float] | None = None  #: seconds and steps, when the steps last went up
    _early: list[float] = field(default_factory=list)
    _late: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))

    def took(self, time: float) -> None:
        """A number was seen at this time."""
        self.started_at = time if self.started_at is None else min(time, self.started_at)

    def loss(self, value: float) -> None:
        """The next loss. When there are too many, every second one goes: the course stays."""
        if not math.isfinite(value):
            return
        self._last_loss = value
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self._losses.append(value)
        if len(self._losses) >= 2 * MOST_LOSSES:
            del self._losses[1::2]
            self._stride *= 2

    def steps(self, seconds: float, count: float) -> None:
        """The histogram's sum and count; after a restart of the agent they begin anew."""
        before = self._counted
        if before is not None and count == before[1]:
            return
        self._counted = (seconds, count)
        if before is None or count < before[1]:
            return
        each = (seconds - before[0]) / (count - before[1])
        self._late.append(each)
        if len(self._early) <= _BASELINE_STEPS:
            self._early.append(each)

    def pulse(self) -> Pulse:
        """The window as it stands."""
        first = self._early[1:]
        losses = self._losses
        if losses and self._last_loss is not None and self._skipped:
            losses = [*losses, self._last_loss]
        return Pulse(
            losses=tuple(losses[-2 * MOST_LOSSES :]),
            recent=median(self._late) if self._late else None,
            baseline=median(first) if len(first) >= _RECENT_STEPS else None,
            started_at=self.started_at,
        )


def pulse_of(
    losses: Iterable[float], steps: Iterable[tuple[float, float]], started_at: float | None
) -> Pulse:
    """The pulse of a whole history at once: losses, and (seconds, count) of the steps, in order."""
    window = Window(started_at)
    for value in losses:
        window.loss(value)
    for seconds, count in steps:
        window.steps(seconds, count)
    return window.pulse()
