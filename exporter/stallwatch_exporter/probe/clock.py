"""Steady Unix time: anchored once, and counted by the monotonic clock from there.

A change of the wall clock during a run makes no step long or short. All processes of a host have the same
monotonic clock, so the ranks take the agent's anchor from their environment, and agree with it.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # `typing` costs more than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "STALLWATCH_PROBE_CLOCK"  #: ``<seconds to add to the monotonic clock>@<that clock>``


def steady_offset(environ: Mapping[str, str]) -> float:
    """Return the seconds to add to the monotonic clock: the agent's, or on another host our wall clock's.

    Callers that read the clock often add it in place: a function call is a good part of the cost of a step.
    """
    seconds, _, timeline = environ.get(VARIABLE, "").partition("@")
    try:
        if timeline and timeline == namespace("time"):
            return float(seconds)
    except ValueError:
        pass
    return time.time() - time.monotonic()


def namespace(kind: str) -> str:
    """Return the boot and a namespace of this process, or "": a monotonic clock has kind "time".

    The boot's id distinguishes hosts, and boots of one host (namespaces(7), random(4)).
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return f"{boot.read().strip()}/{os.readlink(f'/proc/self/ns/{kind}')}"
    except (OSError, ValueError):
        return ""
