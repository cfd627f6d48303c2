"""Processes that may end at any moment."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import psutil

#: The command line as the installed script runs it: no current folder among the folders of modules.
STALLWATCH = [
    sys.executable,
    "-c",
    "import sys; sys.path[:] = filter(None, sys.path); from stallwatch.cli import main; main()",
]


def runs(process: psutil.Process | int) -> bool:
    """Whether it has not ended. A zombie has: some containers have nobody who collects orphans."""
    try:
        one = psutil.Process(process) if isinstance(process, int) else process
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_all_with(variable: str, value: str) -> None:
    """Kill all processes that were started with this in their environment, also those without a parent."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(variable) == value:
                process.kill()


def connections(process: psutil.Process) -> list[Any]:
    """Its sockets; none of one that has just ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(process.net_connections())
    return []
