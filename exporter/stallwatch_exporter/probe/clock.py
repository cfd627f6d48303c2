"""Unix time that goes on evenly: anchored once, and counted by the monotonic clock from there.

A wall clock that is set while a run trains makes no step long or short. All processes of a host have the same
monotonic clock, so the ranks take the agent's anchor, which their environment names, and agree with it.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # `typing` costs more than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLE = "STALLWATCH_PROBE_CLOCK"  #: ``<seconds to add to the monotonic clock>@<that clock>``


def steady_clock(environ: Mapping[str, str]) -> Callable[[], float]:
    """Return the clock that the agent measures with, or one of our own if it runs on another host."""
    seconds, _, timeline = environ.get(VARIABLE, "").partition("@")
    try:
        offset = float(seconds) if timeline and timeline == monotonic_timeline() else None
    except ValueError:
        offset = None
    if offset is None:
        offset = time.time() - time.monotonic()

    def now(monotonic: Callable[[], float] = time.monotonic, offset: float = offset) -> float:
        return monotonic() + offset

    return now


def monotonic_timeline() -> str:
    """Return the boot and the time namespace, which processes with one monotonic clock share, or ""."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return f"{boot.read().strip()}/{os.readlink('/proc/self/ns/time')}"
    except (OSError, ValueError):
        return ""
