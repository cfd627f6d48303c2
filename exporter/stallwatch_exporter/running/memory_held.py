"""Who held the memory when something was killed: the sentences that go with a SIGKILL.

A launcher only tells "Signal 9, error_file N/A". The probe tells what each rank held, the agent weighs the
command and its processes, and in Kubernetes the pod knows why its container was killed.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence

import msgspec

from stallwatch_exporter.incident import Ending
from stallwatch_exporter.running.ending import Kill, killed_within
from stallwatch_rules.endings import MemoryKnown

_GIB = 2**30
# Each sentence in English, as it is kept, beside what says the same in Chinese.
_RANK = "Rank {rank} held the most memory, up to {size}."
_ALL = "All processes of the command held up to {size}, of {limit} that they may use."
_OOMKILLED = "Kubernetes calls this OOMKilled: the container's memory limit was reached (pod {pod})."
_ASK = "In Kubernetes, `kubectl describe pod {pod}` tells whether it was OOMKilled or evicted."
_CHINESE = {
    _RANK: "rank {rank} 占用内存最多，最高 {size}。",
    _ALL: "该命令的所有进程合计最高占用 {size}，可用上限为 {limit}。",
    _OOMKILLED: "Kubernetes 将其记为 OOMKilled：容器达到了内存上限（pod {pod}）。",
    _ASK: "在 Kubernetes 中，`kubectl describe pod {pod}` 会显示是 OOMKilled 还是被驱逐。",
}
_FIELD = r"(?P<\1>[\\w.-]+(?: [GMK]iB)?)"
_PATTERNS = {
    re.compile(re.sub(r"\\{(\w+)\\}", _FIELD, re.escape(english))): chinese
    for english, chinese in _CHINESE.items()
}


class MemoryHeld:
    """The most that each rank, and the whole command, was seen to hold."""

    def __init__(self) -> None:
        self.counted: Callable[[], bool | None] = lambda: None  #: asks whether the kernel counted an OOM kill
        self.killed: Callable[[Kill | None], None] = lambda _: None  #: tells who counts them of a kill
        self._ranks: dict[int, float] = {}
        self._all = 0
        self._limit = 0

    def rank(self, rank: int, values: Mapping[str, float]) -> None:
        """What a rank told of itself."""
        held = values.get("resident_bytes", 0.0)
        if rank >= 0 and held > self._ranks.get(rank, 0.0):  # never where it is NaN
            self._ranks[rank] = held

    def command(self, size: int, limit: int) -> None:
        """What the command and all its processes hold now, and may at most; bytes."""
        self._all, self._limit = max(self._all, size), limit

    def told(self, ending: Ending, last_lines: Sequence[str], environ: Mapping[str, str]) -> Ending:
        """The ending, where something was killed with what is known of its memory."""
        killed = ending.signal == "SIGKILL" or ending.kind == "oom-killed" or killed_within(last_lines)
        killed = killed or next(iter(ending.codes.values()), None) == -signal.SIGKILL
        if not killed or ending.kind == "finished":
            return ending
        more = [ending.detail]
        if self._ranks:
            most = max(self._ranks, key=lambda rank: self._ranks[rank])
            more.append(_RANK.format(rank=most, size=_size(self._ranks[most])))
        if self._all and self._limit:
            more.append(_ALL.format(size=_size(self._all), limit=_size(self._limit)))
        if environ.get("KUBERNETES_SERVICE_HOST"):  # which the kubelet sets in every container
            pod = re.sub(r"[^\w.-]", "", environ.get("HOSTNAME", "")) or "-"
            more.append((_OOMKILLED if ending.kind == "oom-killed" else _ASK).format(pod=pod))
        counted = ending.memory.counted if ending.memory is not None else None
        known = self._known(counted)
        return msgspec.structs.replace(ending, detail=" ".join(part for part in more if part), memory=known)

    def now(self) -> MemoryKnown | None:
        """What is known while the command runs: a process of it may have been killed."""
        return self._known(self.counted())

    def _known(self, counted: bool | None) -> MemoryKnown | None:
        ranks = {rank: int(size) for rank, size in sorted(self._ranks.items())}
        known = MemoryKnown(counted=counted, held=self._all, limit=self._limit, ranks=ranks)
        return known if known != MemoryKnown() else None


def memory_in_chinese(detail: str) -> str:
    """Those sentences of an ending's detail that are of this module, in Chinese."""
    return "".join(
        chinese.format(**found.groupdict())
        for pattern, chinese in _PATTERNS.items()
        if (found := pattern.search(detail))
    )


def _size(size: float) -> str:
    """In GiB, so that sizes compare at a glance; what is no tenth of one in a smaller unit."""
    for unit, name in ((_GIB, "GiB"), (2**20, "MiB")):
        if size >= 0.1 * unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 2**10:.1f} KiB"
