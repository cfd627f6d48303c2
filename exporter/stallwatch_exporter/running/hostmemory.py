"""How much memory a command and everything it started use."""

from __future__ import annotations

from pathlib import Path

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


def memory_limit(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """What all processes here may use before the kernel ends one: our cgroup's limit, or the machine's."""
    found = [size for group in _groups(proc) for size in _limits(cgroups, group)]
    return min([int(psutil.virtual_memory().total), *found])


def _groups(proc: Path) -> list[str]:
    """Our cgroup's path, as version 2 (``0::/path``) or version 1 (``9:memory:/path``) tells it."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    parts = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return [path for number, names, path in parts if number == "0" or "memory" in names.split(",")]


def _limits(cgroups: Path, group: str) -> list[int]:
    """The limits of a cgroup and all above it; inside a container its own folder is the root."""
    found = []
    parts = [part for part in group.split("/") if part]
    for depth in range(len(parts) + 1):
        place = "/".join(parts[:depth])
        for path in (cgroups / place / "memory.max", cgroups / "memory" / place / "memory.limit_in_bytes"):
            try:
                found.append(int(path.read_text()))
            except (OSError, ValueError):  # "max": none
                continue
    return [size for size in found if size > 0]
