"""Measure processor time and find free ports on this machine."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable


def processor_seconds() -> float:
    """Return the processor time of this process and of its finished child processes, in seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def measured(run: Callable[[], object]) -> tuple[float, float]:
    """Run a function. Return its processor time and its elapsed time, in seconds."""
    used, start = processor_seconds(), time.perf_counter()
    run()
    return processor_seconds() - used, time.perf_counter() - start


def free_port() -> int:
    """Return a port that no process on this machine uses."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
