"""Read a process's state, waits, processor time, and children.

The functions read files in ``/proc`` on Linux (proc(5)). If a file is unreadable, the result is a default,
such as ``None``.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from pathlib import Path

import psutil

from stallwatch_exporter.probe.stacks import signal_masks
from stallwatch_exporter.rings.presence import inspect_process
from stallwatch_rules.stacks.records import Condition
from stallwatch_rules.text.lazy import lazy

PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_LOCK = lazy(r"^\d+: (?P<waits>-> )?\S+\s+\S+\s+\S+\s+(?P<pid>\d+) ")
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
# Numbers of the system calls read and pselect6, by machine (asm/unistd_64.h and asm-generic/unistd.h).
_INPUT_CALLS = {"x86_64": ("0", "270"), "aarch64": ("63", "72")}
_STATES: dict[str, Condition] = {"T": "stopped", "t": "stopped", "D": "blocked", "Z": "ended", "X": "ended"}


def family(command: int | None) -> list[psutil.Process]:
    """Return the command and all its descendants, or an empty list if the command has ended or is unknown."""
    if command is None:  # psutil interprets None as this process
        return []
    return inspect_process(command, lambda leader: [leader, *leader.children(recursive=True)], [])


def condition(pid: int, proc: Path = PROC) -> Condition:
    """Return the condition of the process: alive, stopped, blocked, or ended."""
    status = _read(proc / str(pid) / "status")
    if status is None:
        return "ended" if proc.is_dir() else "alive"
    found = re.search(r"^State:\s+(\w)", status, re.MULTILINE)
    return _STATES.get(found[1], "alive") if found else "alive"


def kernel_place(pid: int) -> str:
    """Return the kernel function in which a process waits. It is usually empty for users other than root."""
    stack = _read(PROC / str(pid) / "stack") or ""
    found = re.search(r"^\[<[0-9a-f]+>\] (\w+)", stack, re.MULTILINE)
    if found:
        return found[1]
    place = (_read(PROC / str(pid) / "wchan") or "").strip()
    return "" if place == "0" else place


def transferred(pid: int) -> int | None:
    """Return how many bytes the main thread has read and written (proc_pid_io(5)), or ``None`` if unknown."""
    return _transferred(PROC / str(pid) / "task" / str(pid) / "io")


def children_transferred(pid: int) -> dict[int, int]:
    """Return how many bytes each descendant has read and written, if this number is readable."""
    sizes = {child.pid: _transferred(PROC / str(child.pid) / "io") for child in family(pid)[1:]}
    return {child: size for child, size in sizes.items() if size is not None}


def processor_seconds(pid: int) -> float | None:
    """Return how many seconds the main thread has run, or has been ready to run, on a processor.

    On an overloaded machine, a thread that computes waits for a processor for most of the time. The kernel
    counts this time in ``schedstat`` (Documentation/scheduler/sched-stats.rst) unless this feature is missing
    or disabled. In that case, the result is the processor time alone (proc_pid_stat(5)). The result is
    ``None`` if the process has ended.
    """
    thread = PROC / str(pid) / "task" / str(pid)
    times = (_read(thread / "schedstat") or "").split()
    if len(times) == 3 and times != ["0", "0", "0"]:  # zeros show that the kernel does not measure time
        return (int(times[0]) + int(times[1])) / 1e9
    fields = (_read(thread / "stat") or "").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS if len(fields) > 12 else None


def reads_input(pid: int) -> bool:
    """Return whether the main thread waits for standard input, for example, in ``input()``.

    The kernel shows the number of the system call and its arguments (proc_pid_syscall(5)). The call is
    ``read`` of descriptor 0, or ``pselect6`` of descriptor 0 alone, as in GNU readline.
    """
    reads, selects = _INPUT_CALLS.get(platform.machine(), ("", ""))
    call, *arguments = (_read(PROC / str(pid) / "task" / str(pid) / "syscall") or "").split()[:2] or [""]
    return (call, *arguments) in ((reads, "0x0"), (selects, "0x1"))


def children_seconds(pid: int) -> float | None:
    """Return the processor time of all descendants in seconds, or ``None`` if there are none."""
    found = []
    for child in family(pid)[1:]:
        with contextlib.suppress(psutil.Error, OSError):
            times = child.cpu_times()
            found.append(times.user + times.system)
    return sum(found) if found else None


def is_suspended(command: int) -> bool:
    """Return whether the command and all its descendants are stopped, or their control group is frozen."""
    members = family(command)
    # A single stopped process does not mean that the job is suspended.
    if len(members) > 1 and all(condition(member.pid) == "stopped" for member in members):
        return True
    return bool(members) and is_frozen(command)


def is_frozen(pid: int) -> bool:
    """Return whether the control group (version 2) of the process is frozen (cgroup.events, ``frozen``)."""
    found = re.search(r"^0::/(.*)$", _read(PROC / str(pid) / "cgroup") or "", re.MULTILINE)
    return found is not None and "frozen 1" in (_read(_CGROUPS / found[1] / "cgroup.events") or "")


def lock_holders() -> dict[int, int]:
    """Map each process that waits for a file lock to the process that holds the lock, both by process ID."""
    waiting: dict[int, int] = {}
    holder: int | None = None
    for line in (_read(PROC / "locks") or "").splitlines():
        found = _LOCK.match(line)
        if found is None:
            continue
        if found["waits"] is None:
            holder = int(found["pid"])
        elif holder:
            waiting[int(found["pid"])] = holder
    return waiting


def handles(pid: int, number: int, proc: Path = PROC) -> bool:
    """Return whether a signal would run a handler in the process rather than kill it."""
    try:
        masks = signal_masks(str(proc / str(pid) / "status"))
    except OSError:
        return False
    return bool((masks["SigCgt"] & ~masks["SigBlk"]) >> (number - 1) & 1)


def _transferred(io: Path) -> int | None:
    counts = re.findall(r"^[rw]char: (\d+)$", _read(io) or "", re.MULTILINE)
    return sum(map(int, counts)) if counts else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return None


def require_descriptors(count: int = 8) -> None:
    """Raise `OSError` if fewer than `count` files can be opened. Queries need that many files."""
    opened: list[int] = []
    try:
        while len(opened) < count:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    finally:
        for descriptor in opened:
            os.close(descriptor)
