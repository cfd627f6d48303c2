"""Return steady Unix time, which starts from the wall clock and follows the monotonic clock.

A change of the wall clock during a run does not affect the duration of a step. All processes of a host share
a monotonic clock, so the ranks read the agent's offset from their environment.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # importing `typing` costs more than this module
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "STALLWATCH_PROBE_CLOCK"  #: value: ``<seconds to add to the monotonic clock>@<that clock>``


def steady_offset(environ: Mapping[str, str]) -> float:
    """Return the seconds to add to the monotonic clock: on the agent's host, the same as the agent adds.

    Frequent callers add them themselves, because a function call is a large part of a step's cost.
    """
    seconds, _, timeline = environ.get(VARIABLE, "").partition("@")
    try:
        if timeline and timeline == namespace("time"):
            return float(seconds)
    except ValueError:
        pass
    return time.time() - time.monotonic()


def namespace(kind: str) -> str:
    """Return this host's boot id and the id of this process's namespace; empty if they are unknown.

    `kind` is the kind of namespace, such as "time" for clocks. The boot id distinguishes hosts, and boots of
    one host (namespaces(7), random(4)).
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return f"{boot.read().strip()}/{os.readlink(f'/proc/self/ns/{kind}')}"
    except (OSError, ValueError):
        return ""
