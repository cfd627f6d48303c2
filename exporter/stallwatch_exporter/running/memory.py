"""Track the memory use of a command, its memory limit, and the rank that uses the most memory.

When a process is killed, a launcher reports only "Signal 9, error_file N/A". Therefore, the probe reports the
memory of each rank, and the agent measures the command and its processes. In Kubernetes, the Pod shows why
its container was killed.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
from msgspec.structs import replace

from stallwatch_exporter.running.ending import Kill, killed_within, memory_groups
from stallwatch_exporter.stacks.processes import family
from stallwatch_rules.endings import Ending, MemoryUse
from stallwatch_rules.messages import message, sentences
from stallwatch_rules.text.display import size_text


class MemoryHeld:
    """Record the highest memory use of each rank and of the whole command."""

    def __init__(self) -> None:
        #: Returns whether the kernel counted an OOM kill, or None if the count is unknown.
        self.counted: Callable[[], bool | None] = lambda: None
        self.killed: Callable[[Kill | None], None] = lambda _: None  #: reports a kill to the OOM counter
        self._ranks: dict[int, float] = {}
        self._all = 0
        self._limit = 0

    def rank(self, rank: int, values: Mapping[str, float]) -> None:
        """Record the memory use of a rank from the values that it reported."""
        held = values.get("resident_bytes", 0.0)
        if rank >= 0 and held > self._ranks.get(rank, 0.0):  # this comparison is false for NaN
            self._ranks[rank] = held

    def command(self, size: int, limit: int) -> None:
        """Record the memory use of the command and all its processes, and the memory limit, both in bytes."""
        self._all, self._limit = max(self._all, size), limit

    def with_memory(self, ending: Ending, last_lines: Sequence[str], environ: Mapping[str, str]) -> Ending:
        """If a process was killed, add the known memory use to the ending. Return the ending."""
        killed = ending.signal == "SIGKILL" or ending.kind == "oom-killed" or killed_within(last_lines)
        killed = killed or next(iter(ending.codes.values()), None) == -signal.SIGKILL
        if not killed or ending.kind == "finished":
            return ending
        more = []
        if self._ranks:
            most = max(self._ranks, key=lambda rank: self._ranks[rank])
            more.append(message("run.rank-held", rank=most, size=size_text(self._ranks[most])))
        if self._all and self._limit:
            more.append(message("run.all-held", size=size_text(self._all), limit=size_text(self._limit)))
        if environ.get("KUBERNETES_SERVICE_HOST"):  # the kubelet sets this variable in every container
            pod = re.sub(r"[^\w.-]", "", environ.get("HOSTNAME", "")) or "-"
            more.append(
                message("run.oomkilled" if ending.kind == "oom-killed" else "run.ask-kubernetes", pod=pod)
            )
        counted = ending.memory.counted if ending.memory is not None else None
        return replace(ending, detail=sentences(ending.detail, *more), memory=self._known(counted))

    def now(self) -> MemoryUse | None:
        """Return the known memory use while the command runs."""
        return self._known(self.counted())

    def _known(self, counted: bool | None) -> MemoryUse | None:
        ranks = {rank: int(size) for rank, size in sorted(self._ranks.items())}
        known = MemoryUse(counted=counted, held=self._all, limit=self._limit, ranks=ranks)
        return known if known != MemoryUse() else None


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its descendants. Shared pages are counted repeatedly."""
    total = 0
    for process in family(pid):
        try:
            total += int(process.memory_info().rss)
        except (psutil.Error, OSError):
            continue  # the process has already ended
    return total


def memory_limit(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of bytes that all processes can use: this cgroup's limit or the machine's memory."""
    found = [size for _, group in memory_groups(proc) for size in _limits(cgroups, group)]
    return min([int(psutil.virtual_memory().total), *found])


def _limits(cgroups: Path, group: str) -> list[int]:
    """Return the limits of a cgroup and its ancestors. In a container, `cgroups` is the cgroup's folder."""
    found = []
    parts = [part for part in group.split("/") if part]
    for depth in range(len(parts) + 1):
        place = "/".join(parts[:depth])
        for path in (cgroups / place / "memory.max", cgroups / "memory" / place / "memory.limit_in_bytes"):
            try:
                found.append(int(path.read_text()))
            except (OSError, ValueError):  # the file does not exist, or contains "max", which means no limit
                continue
    return [size for size in found if size > 0]
