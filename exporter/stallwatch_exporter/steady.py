"""The clock that durations are measured with: the Unix time of our start, and the monotonic clock since.

It does not notice a wall clock that is set, and does not go on while the machine is suspended. What leaves
the process, such as the time of an incident, is given by the wall clock: ``wall``.
"""

from __future__ import annotations

import time

from stallwatch_exporter.probe.clock import VARIABLE, namespace

_OFFSET = time.time() - time.monotonic()
_STEP = 1.0  # seconds by which the wall clock must have moved before anybody is told other times


def now() -> float:
    """Return the steady time, in Unix seconds."""
    return time.monotonic() + _OFFSET


def moved() -> float:
    """Return by how many seconds the wall clock has been set since we started; less than one is 0."""
    by = time.time() - now()
    return by if abs(by) >= _STEP else 0.0


def wall(moment: float) -> float:
    """Return a steady time as the wall clock, as it is set now, would have shown it."""
    return moment + moved()


def environment() -> dict[str, str]:
    """Return what makes the probes of child processes measure with this clock."""
    timeline = namespace("time")
    return {VARIABLE: f"{_OFFSET!r}@{timeline}"} if timeline else {}
