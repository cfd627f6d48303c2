"""Clock for durations: the Unix time at the start of the process, plus the monotonic time since that start.

The clock ignores changes to the wall clock and stops while the machine is suspended. ``wall`` converts times
that other programs read, such as the time of an incident, to wall-clock time.
"""

from __future__ import annotations

import time

from stallwatch_exporter.probe.clock import VARIABLE, namespace

_OFFSET = time.time() - time.monotonic()
_STEP = 1.0  # minimum change of the wall clock, in seconds, that affects reported times


def now() -> float:
    """Return the steady time as a Unix timestamp in seconds."""
    return time.monotonic() + _OFFSET


def moved() -> float:
    """Return the seconds by which the wall clock has changed since the start, or 0 for less than a second."""
    change = time.time() - now()
    return change if abs(change) >= _STEP else 0.0


def wall(moment: float) -> float:
    """Convert a steady time to wall-clock time, based on the current setting of the wall clock."""
    return moment + moved()


def environment() -> dict[str, str]:
    """Return the environment variables that make the probes of child processes use this clock."""
    timeline = namespace("time")
    return {VARIABLE: f"{_OFFSET!r}@{timeline}"} if timeline else {}
