"""Compute steady Unix time, which starts from the wall clock and follows the monotonic clock.

A change of the wall clock during a run does not affect the measured duration of a step. All processes of a
host share a monotonic clock. Therefore, the ranks can use the agent's offset, which they read from their
environment.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # importing `typing` takes longer than importing this module
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "STALLWATCH_PROBE_CLOCK"  #: value: ``<seconds to add to the monotonic clock>@<id of that clock>``


def steady_offset(environ: Mapping[str, str]) -> float:
    """Return the offset of the monotonic clock in seconds. On the agent's host, return the agent's offset.

    Code that runs in each step adds the offset itself because a call to another function would account for a
    large part of the step's cost.
    """
    seconds, _, timeline = environ.get(VARIABLE, "").partition("@")
    try:
        if timeline and timeline == namespace("time"):
            return float(seconds)
    except ValueError:
        pass
    return time.time() - time.monotonic()


def namespace(kind: str) -> str:
    """Return the host's boot ID and the ID of this process's namespace, or "" if they are unknown.

    `kind` is the kind of namespace, such as "time" for clocks. Boot IDs differ between hosts, and between
    boots of the same host (namespaces(7), random(4)).
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return f"{boot.read().strip()}/{os.readlink(f'/proc/self/ns/{kind}')}"
    except (OSError, ValueError):
        return ""
