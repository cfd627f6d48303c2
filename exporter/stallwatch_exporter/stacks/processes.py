"""What the kernel tells of a process from outside: stopped, blocked, ended, or waiting; and what it started.

Files of Linux's ``/proc`` (proc(5)); elsewhere, or where they may not be read, nothing is known.
"""

from __future__ import annotations

import re
from pathlib import Path

import psutil

from stallwatch_rules.stacks.records import Condition

PROC = Path("/proc")
_LOCK = re.compile(r"^\d+: (?P<waits>-> )?\S+\s+\S+\s+\S+\s+(?P<pid>\d+) ")
_STATES: dict[str, Condition] = {
    "T": "stopped",
    "t": "stopped",
    "D": "blocked",
    "Z": "ended",
    "X": "ended",
}


def family(command: int) -> list[psutil.Process]:
    """The command and all that it started; nothing where it has ended."""
    try:
        leader = psutil.Process(command)
        return [leader, *leader.children(recursive=True)]
    except (psutil.Error, OSError):
        return []


def condition(pid: int, proc: Path = PROC) -> Condition:
    """Whether the process runs, stands, or is gone."""
    status = _read(proc / str(pid) / "status")
    if status is None:
        return "ended" if proc.is_dir() else "alive"
    found = re.search(r"^State:\s+(\w)", status, re.MULTILINE)
    return _STATES.get(found[1], "alive") if found else "alive"


def kernel_place(pid: int, proc: Path = PROC) -> str:
    """The kernel's function that the process waits in, such as ``folio_wait_bit_common``; mostly for root."""
    stack = _read(proc / str(pid) / "stack") or ""
    found = re.search(r"^\[<[0-9a-f]+>\] (\w+)", stack, re.MULTILINE)
    if found:
        return found[1]
    place = (_read(proc / str(pid) / "wchan") or "").strip()
    return "" if place == "0" else place


def lock_holders(proc: Path = PROC) -> dict[int, int]:
    """Processes that wait for a file lock, each with the one that holds it."""
    waiting: dict[int, int] = {}
    holder: int | None = None
    for line in (_read(proc / "locks") or "").splitlines():
        found = _LOCK.match(line)
        if found is None:
            continue
        if found["waits"] is None:
            holder = int(found["pid"])
        elif holder:
            waiting[int(found["pid"])] = holder
    return waiting


def handles(pid: int, number: int, proc: Path = PROC) -> bool:
    """Whether the process has a handler for a signal and does not block it: without one it would die."""
    status = _read(proc / str(pid) / "status") or ""
    masks = {name: int(value, 16) for name, value in re.findall(r"^(Sig\w+):\s*([0-9a-f]+)$", status, re.M)}
    bit = 1 << (number - 1)
    return bool(masks.get("SigCgt", 0) & bit) and not masks.get("SigBlk", 0) & bit


def _read(path: Path) -> str | None:
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return None
