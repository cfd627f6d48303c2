"""Processes that have a file open for writing, by the descriptors that Linux shows in ``/proc`` (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import psutil

_PROC = Path("/proc")


def has_writer(path: Path, pids: Collection[int]) -> bool:
    """Whether one of the processes, or a process that they started, has `path` open, or a file below it.

    Descriptors of processes that may not be looked at are not seen.
    """
    return bool(pids) and any(_writes(pid, str(path.resolve())) for pid in _with_children(pids))


def _with_children(pids: Collection[int]) -> set[int]:
    parents = {process.pid: process.info["ppid"] for process in psutil.process_iter(["ppid"])}
    family = set(pids)
    fresh = family
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - family
        family |= fresh
    return family


def _writes(pid: int, path: str) -> bool:
    try:
        numbers = [each.name for each in (_PROC / str(pid) / "fd").iterdir()]
    except OSError:
        return False
    return any(_is_written(_PROC / str(pid), number, path) for number in numbers)


def _is_written(process: Path, number: str, path: str) -> bool:
    try:
        target = str((process / "fd" / number).readlink())
        if target != path and not target.startswith(f"{path}{os.sep}"):
            return False
        for line in (process / "fdinfo" / number).read_text("ascii").splitlines():
            if line.startswith("flags:"):
                return int(line.split()[1], 8) & (os.O_WRONLY | os.O_RDWR) != 0
    except (OSError, ValueError, IndexError):  # closed meanwhile
        pass
    return False
