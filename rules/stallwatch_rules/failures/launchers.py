"""Read launchers' reports about failed ranks, and read the memory limits of OOM-killed containers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stallwatch_rules.records import Line
from stallwatch_rules.text.lazy import lazy

_RANK = lazy(r"^\s*rank\s*: (\d{1,6}) \(local_rank: \d+\)")
_EXIT = lazy(r"^\s*exitcode\s*: (-?\d{1,4})\b")
_STATUS = lazy(r"failed \(exitcode: (-?\d{1,4})\) local_rank|exits with return code = (-?\d{1,4})\b")
# Summaries from Open MPI (orte/tools/orterun/help-orterun.txt in 4.1). In 5.0 and later, "prterun" prints the
# summaries.
_SIGNALLED = lazy(r" noticed that process rank (\d{1,6}) .{1,200}? exited on signal (\d{1,3})")
_PROCESS = lazy(r"^\s*Process name: \[(?:\[\d+,\d+\]|[\w.@-]+),\s?(\d{1,6})\]")
_CODE = lazy(r"^\s*Exit code:\s+(-?\d{1,4})\b")
# The DeepSpeed launcher (launcher/launch.py in 0.19.8). --local_rank equals the rank only on a single node.
_NODES = lazy(r"\bnnodes=(\d{1,6}), num_local_procs=\d")
_SPAWNED = lazy(r"\bprocess (\d{1,8}) spawned with command: (?:.*?--local_rank=(\d{1,6})\b)?")
_LEFT = lazy(r"\bProcess (\d{1,8}) exits successfully")
_BY_SIGTERM = (-15, 143)
_ROOT = "Root Cause (first observed failure)"
_AGAIN = lazy(r"Worker group \w{1,20}\. (\d{1,6}/\d{1,6}) attempts left; ?will restart worker group")
_LOCAL = lazy(r"failed \(exitcode: -?\d{1,4}\) local_rank: (\d{1,6})\b")
# Output of `kubectl describe pod` (describeContainers in pkg/describe/describe.go of kubectl). For each
# container, the output shows the state, then the limits, then the requests. The capacity of a node has no
# state.
_STATE = lazy(r"^\s+State: {2,20}\S")
_KILLED = lazy(r"^\s+Reason: {2,20}OOMKilled\s*$")
_LIMITS = lazy(r"^\s+Limits:\s*$")
_LIMIT = lazy(r"^\s+memory: {2,20}(\d{1,15}(?:\.\d{1,3})?(?:[kKMGTPE]i?)?)\s*$")
MAX_RANKS = 4096
MAX_STOPS = 1000
MAX_LIMITS = 16
#: Maximum number of lines between a container's "OOMKilled" and its limits in `kubectl describe pod`.
STATE_LINES = 20


class Stop(msgspec.Struct):
    """A failure of torchrun workers. Later lines can show that torchrun restarted the workers."""

    line: Line  #: the last line in which the launcher reports the failure
    ranks: list[int] = []  #: local ranks of the workers on their node
    left: str = ""  #: number of attempts left, such as "3/3", if torchrun reports a restart
    #: Line number of the message that shows that torchrun itself failed because of these workers.
    over: int | None = None


class LauncherSummary(msgspec.Struct):
    """A reader for the failure reports that torchrun, Open MPI, and the DeepSpeed launcher print."""

    codes: dict[int, int | None] = {}  #: exit code of each failed rank
    exit_lines: dict[int, Line] = {}  #: line with the exit code of each failed rank
    first: int | None = None  #: rank whose failure torchrun reports as the first failure
    failed_by_itself: bool = False  #: True if a process failed for a reason other than SIGTERM
    spawned: dict[int, int | None] = {}  #: local rank of each started process, keyed by process ID
    stops: list[Stop] = []  #: failures of workers that torchrun reported
    #: Line and step of each process that ended without an error, keyed by process ID.
    left: dict[int, tuple[Line, int | None]] = {}
    limits: dict[str, Line] = {}  #: lines with memory limits of OOM-killed containers, keyed by limit
    one_node: bool = False  #: True if the DeepSpeed launcher reports a single node
    #: The line in which the launcher ends its processes because one of them failed, and the number of steps
    #: that the stream shows above this line.
    kills: tuple[Line, int] | None = None
    _killed: int | None = None  # line number of the report that the current container was OOM-killed
    _limited: bool = False  # True if the next lines contain the memory limits of an OOM-killed container
    _over: bool = False  # True if the launcher ended its processes after a failure
    _rank: int | None = None
    _root: bool = False

    @classmethod
    def seen(cls, codes: Mapping[int, int | None]) -> LauncherSummary:
        """Return a summary that is created from known exit codes instead of a log.

        The first rank in `codes` is the rank that failed first.
        """
        by_itself = any(code not in _BY_SIGTERM for code in codes.values())
        return cls(dict(codes), first=next(iter(codes), None), failed_by_itself=by_itself)

    def see(self, line: Line, step: int | None = None, advances: int = 0) -> None:
        """Read the next line. `step` is the current training step, and `advances` the number of steps."""
        text = line.text
        status = _STATUS.search(text)
        if status is not None:
            self._ended(int(status[1] or status[2]))
            local = _LOCAL.search(text)
            if local is not None and len(self.stops) < MAX_STOPS:
                self.stops.append(Stop(line, [int(local[1])]))
        elif "will restart worker group" in text:
            self._again(line)
        elif "ChildFailedError:" in text:
            for stop in self.stops:
                stop.over = line.number if stop.over is None and not stop.left else stop.over
        elif _ROOT in text:
            self._root = True
        elif "noticed that process rank" in text and (found := _SIGNALLED.search(text)):
            self._exited(int(found[1]), -int(found[2]), line)
        elif "Process name:" in text:
            found = _PROCESS.match(text)
            self._rank = int(found[1]) if found is not None else None
        elif self._rank is not None and "Exit code:" in text and (found := _CODE.match(text)):
            self._exited(self._rank, int(found[1]), line)
        elif "exits successfully" in text and (found := _LEFT.search(text)):
            if len(self.left) < MAX_RANKS:
                self.left[int(found[1])] = (line, step)
        elif "Killing subprocess" in text:
            if "[launch.py:" in text:
                self._over, self.kills = True, (line, advances)
        elif "Main process received" in text:  # a signal requested the end
            self.kills = None
        elif "num_local_procs" in text:
            found = _NODES.search(text)
            self.one_node = found is not None and int(found[1]) == 1
        elif "spawned with command" in text and (found := _SPAWNED.search(text)):
            if len(self.spawned) < MAX_RANKS:
                self._spawn(int(found[1]), int(found[2]) if found[2] else None)
        elif "local_rank" in text and (found := _RANK.match(text)):
            if len(self.codes) < MAX_RANKS:
                self._rank = int(found[1])
                self.codes.setdefault(self._rank, None)
                if self._root and self.first is None:
                    self.first = self._rank
        elif self._rank is not None and "exitcode" in text and (found := _EXIT.match(text)):
            self._exited(self._rank, int(found[1]), line)
        else:
            self._described(line)

    def _described(self, line: Line) -> None:
        """Read the memory limit of a container that was OOM-killed. Other containers are ignored."""
        if _STATE.match(line.text):
            self._killed, self._limited = None, False
        elif _KILLED.match(line.text):
            self._killed = line.number
        elif _LIMITS.match(line.text):
            self._limited = self._killed is not None and line.number - self._killed <= STATE_LINES
        elif "Requests:" in line.text:
            self._limited = False
        elif self._limited and (found := _LIMIT.match(line.text)) and len(self.limits) < MAX_LIMITS:
            self.limits.setdefault(found[1], line)

    def _again(self, line: Line) -> None:
        """Record a restart of the workers. By default, torchrun logs no restarts."""
        again = _AGAIN.search(line.text)
        if again is None:
            return
        if self.stops and not self.stops[-1].left:
            self.stops[-1].line, self.stops[-1].left = line, again[1]
        elif len(self.stops) < MAX_STOPS:
            self.stops.append(Stop(line, left=again[1]))

    def _spawn(self, process: int, rank: int | None) -> None:
        # The file also contains the output of another launch.
        if self._over or self.spawned.keys() <= self.left.keys():
            self.spawned.clear()
            self.left.clear()
            self._over, self.kills = False, None
        self.spawned[process] = rank

    @property
    def rank(self) -> int | None:
        """The rank to which the next rows of a launcher's summary belong."""
        return self._rank

    @property
    def left_early(self) -> list[tuple[int | None, int | None, Line]]:
        """The rank, step, and line of each process that exited without an error while others continued.

        The rank is ``None`` if the launcher might have started processes on several nodes.
        """
        if self.spawned.keys() <= self.left.keys():
            return []
        ranks = self.spawned if self.one_node else {}
        return [(ranks.get(process), step, line) for process, (line, step) in self.left.items()]

    def failed_itself(self, rank: int | None) -> bool:
        """Return whether a launcher reported the rank as failed and did not itself end the rank."""
        code = self.codes.get(rank) if rank is not None else None
        return code not in (None, 0, *_BY_SIGTERM)

    def _exited(self, rank: int, code: int, line: Line) -> None:
        if rank in self.codes or len(self.codes) < MAX_RANKS:
            self.codes[rank], self.exit_lines[rank] = code, line
            self._ended(code)

    def _ended(self, code: int) -> None:
        self.failed_by_itself = self.failed_by_itself or (code != 0 and code not in _BY_SIGTERM)

    @property
    def culprits(self) -> list[int]:
        """The failed ranks that the launcher did not end. A user needs to inspect these ranks."""
        failed = [rank for rank, code in self.codes.items() if code not in _BY_SIGTERM]
        return sorted(failed) or ([self.first] if self.first is not None else [])
