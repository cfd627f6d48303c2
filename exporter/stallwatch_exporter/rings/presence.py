"""Inspect processes by ID. The ID of an ended process can be reused for a different process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import psutil

from stallwatch_exporter.probe.clock import namespace

_Fact = TypeVar("_Fact")

#: Seconds by which a process can seem younger than its own ring. The kernel reports the start of a process
#: relative to a boot time in whole seconds, which it adjusts when the clock is set (psutil 7.2.2,
#: ``_pslinux.py``: ``create_time``, ``boot_time``). This adjustment accounts for one second. The other
#: seconds allow for clocks that NTP corrects while the job starts. A process ID is reused only after all
#: other IDs, which takes longer than these seconds. Reporting a running rank as ended is worse than reporting
#: an ended rank as running for a moment.
SAME_PROCESS_SECONDS = 5.0


def is_there(pid: int, started: float) -> bool:
    """Return whether the process `pid`, which ran at `started` (current wall clock), is still running.

    Zombies and other processes with the same ID do not count as running. Processes that cannot be inspected
    count as running.
    """
    try:
        process = psutil.Process(pid)
        same = process.create_time() <= started + SAME_PROCESS_SECONDS
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:
        return True
    except (psutil.Error, OSError):
        return False


def inspect_process(pid: int, query: Callable[[psutil.Process], _Fact], otherwise: _Fact) -> _Fact:
    """Return the result of `query`, or `otherwise` if the process has ended or cannot be inspected."""
    try:
        return query(psutil.Process(pid))
    except (psutil.Error, OSError):  # psutil does not handle a lack of descriptors or memory
        return otherwise


@functools.cache
def process_namespace() -> str:
    """Return the process ID namespace of this process, ``<boot id>/pid:[4026531836]``, or "" if unknown.

    Containers can share a folder and, with ``hostNetwork``, the name of the host, but they do not see each
    other's processes. Therefore, the same ID can belong to different processes.
    """
    return namespace("pid")
