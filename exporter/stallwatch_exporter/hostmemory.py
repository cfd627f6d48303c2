"""How much memory a command and everything it started use."""

from __future__ import annotations

import psutil


def resident_bytes(pid: int) -> int:
    """Resident memory of the process and its descendants. Shared pages count once per process."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except (psutil.Error, OSError):  # no descriptors or no memory left: psutil passes those on as they are
        return 0
    total = 0
    for process in family:
        try:
            total += int(process.memory_info().rss)
        except (psutil.Error, OSError):
            continue  # ended meanwhile
    return total
