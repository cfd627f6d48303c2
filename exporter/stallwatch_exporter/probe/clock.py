"""Unix time that goes on evenly: anchored once, and counted by the monotonic clock from there.

A wall clock that is set while a run trains makes no step long or short. All processes of a host have the same
monotonic clock, so the ranks take the agent's anchor, which their environment names, and agree with it.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # `typing` costs more than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "STALLWATCH_PROBE_CLOCK"  #: ``<seconds to add to the monotonic clock>@<that clock>``


def steady_offset(environ: Mapping[str, str]) -> float:
    """Return what to add to the monotonic clock: as the agent does, or by our wall clock on another host.

    Whoever reads the clock often adds it in place: of a step, the frame of a function is a good part.
    """
    seconds, _, timeline = environ.get(VARIABLE, "").partition("@")
    try:
        if timeline and timeline == monotonic_timeline():
            return float(seconds)
    except ValueError:
        pass
    return time.time() - time.monotonic()


def monotonic_timeline() -> str:
    """Return the boot and the time namespace, which processes with one monotonic clock share, or ""."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return f"{boot.read().strip()}/{os.readlink('/proc/self/ns/time')}"
    except (OSError, ValueError):
        return ""
