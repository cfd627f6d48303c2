"""Whether a process that left a trace is still there."""

from __future__ import annotations

import functools

import psutil

from stallwatch_exporter.probe.clock import namespace

#: A process may seem so many seconds younger than the ring that it made. Its birth is counted in clock ticks
#: (hundredths of a second) from a boot time that the kernel tells in whole seconds and moves along when the
#: clock is set (psutil 7.2.2, ``_pslinux.py``: ``create_time``, ``boot_time``): that is a second at most, and
#: the rest is for clocks that NTP sets right while the job begins. A number is only given to another process
#: when all others were, which takes longer; and a rank that is wrongly called dead is worse than one that is
#: wrongly called alive for a moment.
SAME_PROCESS_SECONDS = 5.0


def is_there(pid: int, started: float) -> bool:
    """Whether the process with this number, which was up at `started` by the wall clock as it is set, is up.

    A zombie is not, nor is another process that got the number meanwhile. One that may not be looked at is.
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
    """The words of a process's command line; none if it is gone."""
    try:
        return tuple(psutil.Process(pid).cmdline())
    except (psutil.Error, OSError):
        return ()


@functools.cache
def process_namespace() -> str:
    """Return whose process numbers ours are, such as ``<boot id>/pid:[4026531836]``; "" if that is not known.

    Containers that share a folder, and with ``hostNetwork`` the host's name, see nothing of each other's
    processes: the same number is another process there.
    """
    return namespace("pid")
