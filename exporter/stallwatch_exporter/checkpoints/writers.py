"""Use the descriptors in ``/proc`` (proc(5)) to find processes that have a file open for writing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

import psutil

from stallwatch_rules.text.lazy import lazy

_FLAGS = lazy(r"(?m)^flags:\s+([0-7]+)")


def has_writer(path: Path, pids: Collection[int]) -> bool:
    """Return whether these processes or their descendants have `path` or a file below it open for writing.

    Processes that cannot be inspected are ignored.
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
    process = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError, ValueError):  # the descriptor was closed after it was listed
                target = str(descriptor.readlink())
                if target != path and not target.startswith(f"{path}{os.sep}"):
                    continue
                flags = _FLAGS.search((process / "fdinfo" / descriptor.name).read_text("ascii"))
                if flags and int(flags[1], 8) & (os.O_WRONLY | os.O_RDWR):
                    return True
    return False
