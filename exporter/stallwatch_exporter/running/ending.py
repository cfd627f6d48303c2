"""Classify how a command ended by its exit status, kernel counters, the scheduler, and its last lines."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from stallwatch_rules.endings import Crash, Ending, MemoryUse, SurvivingRank
from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.text.lazy import lazy

TIMEOUT_EXIT = 124  #: exit code of timeout(1) after its time limit
_SLURM_CANCELLED = lazy(r"CANCELLED AT .* DUE TO (TIME LIMIT|PREEMPTION|NODE FAILURE)")
_KILLED_CHILD = lazy(r"Signal 9 \(SIGKILL\)|exit ?code:? *:? *-9\b|return code = -9\b|exits with .*code -9\b")
_HOW_STOPPED = (signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)
# A launcher that passes on its worker's status with sys.exit(-n) has the exit code 256 - n.
_PASSED_ON = {256 - number: signal.Signals(number) for number in (6, 7, 9, 11, 15)}
_SHELL_SIGNALS = {1, 2, 3, 4, 6, 7, 8, 9, 11, 13, 15, 24, 25}
_MOST_NAMED = 8  # maximum number of running ranks in a message

Kill = tuple[int | None]  #: a kill, identified by the step that the run had reached
OomKills = tuple[Mapping[str, int], Mapping[str, int]]  #: results of ``read_oom_kills`` at two moments


class EndingWatch:
    """Counter of OOM kills since the start of the command, based on the kernel's counters."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._before = read_oom_kills(proc, cgroups)
        self._kill: Kill | None = None
        self._host: int | None = None  # the machine's count of OOM kills at the time of `_kill`

    def counted(self) -> bool | None:
        """Return whether the kernel has counted an OOM kill since the start, or ``None`` if unknown."""
        before, now = self.counts
        return _more_kills(before, now) is not None if before and now else None

    def killed(self, kill: Kill | None) -> None:
        """Record that a process of the run was killed. Later kills on the machine are not counted.

        ``None`` means that the run has continued. In this case, later kills are counted again.
        """
        if kill != self._kill:
            self._kill = kill
            self._host = read_oom_kills(self._proc, self._cgroups).get("host") if kill is not None else None

    @property
    def counts(self) -> OomKills:
        """OOM kill counts from before the command started, and the current counts."""
        now = read_oom_kills(self._proc, self._cgroups)
        return self._before, now if self._host is None else {**now, "host": self._host}


def classify(
    returncode: int,
    *,
    oom: OomKills = ({}, {}),
    seconds: float = 0.0,
    now: float = 0.0,
    passed_on: signal.Signals | None = None,
    interrupted: bool = False,
    last_lines: Sequence[str] = (),
    slurm_end: float | None = None,
) -> Ending:
    """Return the ending of a command.

    `returncode` is ``-n`` for signal n, as in `subprocess`. `oom` contains the counts of OOM kills from
    ``EndingWatch``, before and after the command. `passed_on` is a signal that the agent received and passed
    on. `slurm_end` is the time at which Slurm ends the job. `interrupted` is true if the user pressed
    Control+C.
    """
    killer, how = signal_of(returncode), _status(returncode)
    kills = _more_kills(*oom)
    counted = kills is not None if all(oom) and returncode else None

    def ended(kind: str, detail: Text, killer: signal.Signals | None = killer) -> Ending:
        return Ending(
            kind=kind,  # type: ignore[arg-type]
            exit_code=128 - returncode if returncode < 0 else returncode,
            signal=killer.name if killer else None,
            detail=detail,
            seconds=seconds,
            memory=MemoryUse(counted=counted) if counted is not None else None,
        )

    if returncode == 0:
        return ended("finished", message("run.exited", code=0))
    text = "\n".join(last_lines)
    if kills:
        where, count = kills
        if where == "cgroup" or killer == signal.SIGKILL or _KILLED_CHILD.search(text):
            return ended("oom-killed", message(f"run.oom-{where}", count=count, how=how))
    cancelled = _SLURM_CANCELLED.search(text)
    if cancelled:
        kind = "time-limit" if cancelled[1] == "TIME LIMIT" else "killed"
        return ended(kind, message("run.slurm-cancelled", reason=cancelled[1].lower(), how=how))
    if slurm_end is not None and now >= slurm_end and killer in _HOW_STOPPED:
        return ended("time-limit", message("run.slurm-end", how=how))
    if returncode == TIMEOUT_EXIT:
        return ended("time-limit", message("run.timeout", code=TIMEOUT_EXIT))
    if interrupted or killer == signal.SIGINT:
        return ended("interrupted", message("run.interrupted", how=how))
    if passed_on is not None:
        detail = message("run.passed-on", signal=passed_on.name, how=how)
        return ended("killed", detail, killer or passed_on)  # a launcher can exit with its own code
    if killer is not None:
        return ended("killed", Message(how.id.replace(".status-", ".ended-"), how.params))
    return ended("failed", message("run.exited", code=128 - returncode if returncode < 0 else returncode))


def signal_of(returncode: int) -> signal.Signals | None:
    """Return the signal that ended a command, or that the exit code of a shell or launcher indicates."""
    try:
        if returncode < 0:
            return signal.Signals(-returncode)
    except ValueError:
        return None
    if returncode - 128 in _SHELL_SIGNALS:
        return signal.Signals(returncode - 128)
    return _PASSED_ON.get(returncode)


def _status(returncode: int) -> Message:
    """Return a description of an exit status for use within a sentence."""
    killer = signal_of(returncode)
    if killer is None:
        return message("run.status-unknown" if returncode < 0 else "run.status-code", code=returncode)
    if returncode < 0:
        return message("run.status-signal", signal=killer.name)
    how = "worker" if returncode in _PASSED_ON else "shell"
    return message(f"run.status-{how}", code=returncode, signal=killer.name, number=int(killer))


def crash_sentence(crash: Crash) -> Message:
    """Return the description of a failure that the command hid by returning 0."""
    ended_by = signal_of(crash.code) if crash.code is not None else None
    how: str = crash.by
    if how == "process":
        how = "signal" if ended_by is not None else "error" if crash.error else "code"
    elif how == "log" and crash.error:
        how = "log-error"
    facts: dict[str, str | int | Message] = {
        "who": f"rank {crash.rank}" if crash.rank is not None else message("run.program"),
        "signal": ended_by.name if ended_by is not None else "",
        "code": crash.code if crash.code is not None else "",
        "error": crash.error,
    }
    where: str | Message = ""
    if crash.step is not None:
        where = message("run.at-step", step=crash.step)
        if crash.total is not None:
            where = message("run.at-step-of", step=crash.step, total=crash.total)
    hint = message(f"run.hidden-{crash.hidden}") if crash.hidden and crash.by != "loss" else ""
    return message("run.returned-0", how=message(f"run.crash-{how}", **facts), where=where, hint=hint)


def running_sentence(running: Sequence[SurvivingRank]) -> Message | None:
    """Return a sentence that names the ranks that are still running."""
    if not running:
        return None
    named = ", ".join(f"{rank.rank} (PID {rank.pid})" for rank in running[:_MOST_NAMED])
    more = len(running) - _MOST_NAMED
    if more > 0:
        return message("run.many-running", ranks=named, more=more)
    return message("run.running", ranks=named, count=len(running))


def killed_within(last_lines: Sequence[str]) -> bool:
    """Return whether a launcher reports in these lines that SIGKILL ended a process."""
    return _KILLED_CHILD.search("\n".join(last_lines)) is not None


def read_oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> dict[str, int]:
    """Return the kernel's counts of OOM kills in this control group ("cgroup") and on the machine ("host").

    The count of a control group includes kills that the limits of outer groups or of the machine caused.
    """
    counts: dict[str, int] = {}
    host = _counter(proc / "vmstat", "oom_kill")
    if host is not None:
        counts["host"] = host
    for version, path in memory_groups(proc):
        below = path.lstrip("/")
        if version == 2:
            files = [cgroups / below / "memory.events", cgroups / "unified" / below / "memory.events"]
        else:
            # In a container, ``/proc`` shows the group's path on the host, but the group's files are at the
            # top of the mount.
            files = [
                cgroups / "memory" / below / "memory.oom_control",
                cgroups / "memory" / "memory.oom_control",
            ]
        for file in files:
            own = _counter(file, "oom_kill")
            if own is not None:
                counts["cgroup"] = max(own, counts.get("cgroup", 0))
                break
    return counts


def memory_groups(proc: Path) -> list[tuple[int, str]]:
    """Return the version and the path of each control group that limits the memory of this process.

    The lines are ``0::/path`` in version 2, and ``9:memory:/path`` in version 1.
    """
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    parts = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    groups = [(2 if number == "0" else 1, names.split(","), path) for number, names, path in parts]
    return [(version, path) for version, names, path in groups if version == 2 or "memory" in names]


def _counter(path: Path, key: str) -> int | None:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        pass
    return None


def _more_kills(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[str, int] | None:
    for where in ("cgroup", "host"):
        if where in before and after.get(where, 0) > before[where]:
            return where, after[where] - before[where]
    return None


def slurm_end(environ: Mapping[str, str]) -> float | None:
    """Return the Unix timestamp, in seconds, at which Slurm ends the job, or ``None`` outside a job."""
    try:
        return float(environ.get("SLURM_JOB_END_TIME", ""))
    except ValueError:
        return None
