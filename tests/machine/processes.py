"""Processes that may end at any moment."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import psutil

#: Command line of the installed script: the current folder is not in the module path.
STALLWATCH = [
    sys.executable,
    "-c",
    "import sys; sys.path[:] = filter(None, sys.path); from stallwatch.cli import main; main()",
]


def runs(process: psutil.Process | int) -> bool:
    """Return True if the process has not ended. A zombie has ended: some containers reap no orphans."""
    try:
        one = psutil.Process(process) if isinstance(process, int) else process
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_all_with(variable: str, value: str) -> None:
    """Kill all processes with this variable in their environment, also those without a parent."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(variable) == value:
                process.kill()


def connections(process: psutil.Process) -> list[Any]:
    """Return the sockets of a process; none if it has just ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(process.net_connections())
    return []
