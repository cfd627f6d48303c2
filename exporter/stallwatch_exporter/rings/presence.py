"""Check whether a process that started at a known time is still running."""

from __future__ import annotations

import functools

import psutil

from stallwatch_exporter.probe.clock import namespace

#: Seconds by which a process may seem younger than its own ring. Its start is counted in clock ticks
#: (hundredths of a second) from a boot time that the kernel gives in whole seconds and adjusts when the clock
#: is set (psutil 7.2.2, ``_pslinux.py``: ``create_time``, ``boot_time``): that explains one second at most,
#: and the rest is for clocks that NTP corrects while the job begins. A process id is reused only after all
#: other ids, which takes longer; and a rank wrongly reported dead is worse than a rank wrongly reported alive
#: for a moment.
SAME_PROCESS_SECONDS = 5.0


def is_there(pid: int, started: float) -> bool:
    """Return whether the process `pid`, which ran at `started` (current wall clock), still runs.

    Zombies and other processes with the same id do not count; processes that cannot be inspected do.
    """
    try:
        process = psutil.Process(pid)
        same = process.create_time() <= started + SAME_PROCESS_SECONDS
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:
        return True
    except (psutil.Error, OSError):
        return False


def command_line(pid: int) -> tuple[str, ...]:
    """Return the words of a process's command line; empty if the process has ended."""
    try:
        return tuple(psutil.Process(pid).cmdline())
    except (psutil.Error, OSError):
        return ()


@functools.cache
def process_namespace() -> str:
    """Return the namespace of this process's ids, ``<boot id>/pid:[4026531836]``; "" if it is unknown.

    Containers can share a folder and, with ``hostNetwork``, the name of the host, but they do not see each
    other's processes. The same id then belongs to different processes.
    """
    return namespace("pid")
