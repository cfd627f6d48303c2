"""How the command ended: by its exit status, the kernel's counters, the scheduler and its last lines."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from stallwatch_exporter.incident import Ending
from stallwatch_rules.endings import MemoryKnown
from stallwatch_rules.text.lazy import lazy

TIMEOUT_EXIT = 124  #: what timeout(1) ends with when the time is up
_SLURM_CANCELLED = lazy(r"CANCELLED AT .* DUE TO (TIME LIMIT|PREEMPTION|NODE FAILURE)")
_KILLED_CHILD = lazy(r"Signal 9 \(SIGKILL\)|exit ?code:? *:? *-9\b|return code = -9\b|exits with .*code -9\b")
_HOW_STOPPED = (signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)
# What sys.exit(-n) becomes in a launcher that passes its worker's status on: 256 - n.
_PASSED_ON = {256 - number: signal.Signals(number) for number in (6, 7, 9, 11, 15)}

Kill = tuple[int | None]  #: which kill is meant: that at this step


class EndingWatch:
    """Reads the kernel's counters before the command starts, and tells how it ended afterwards."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._before = read_oom_kills(proc, cgroups)
        self._kill: Kill | None = None
        self._host: int | None = None  # the machine's count as it was when that kill was seen

    def counted(self) -> bool | None:
        """Whether the kernel counted an OOM kill since the command started; ``None``: it cannot be read."""
        now = self._now()
        return _oom_kills(self._before, now) is not None if self._before and now else None

    def killed(self, kill: Kill | None) -> None:
        """A process of the run was killed: what the whole machine counts afterwards is another's kill.

        ``None`` where the run went on after it.
        """
        if kill != self._kill:
            self._kill = kill
            self._host = read_oom_kills(self._proc, self._cgroups).get("host") if kill is not None else None

    def _now(self) -> dict[str, int]:
        now = read_oom_kills(self._proc, self._cgroups)
        return now if self._host is None else {**now, "host": self._host}

    def ending(
        self,
        returncode: int,
        *,
        seconds: float,
        now: float,
        passed_on: signal.Signals | None = None,
        interrupted: bool = False,
        last_lines: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Ending:
        """The ending, by `classify`, with the counters as they are now."""
        return classify(
            returncode,
            oom_before=self._before,
            oom_after=self._now(),
            seconds=seconds,
            now=now,
            passed_on=passed_on,
            interrupted=interrupted,
            last_lines=last_lines,
            slurm_end=_number((environ or {}).get("SLURM_JOB_END_TIME")),
        )


def classify(
    returncode: int,
    *,
    oom_before: Mapping[str, int] | None = None,
    oom_after: Mapping[str, int] | None = None,
    seconds: float = 0.0,
    now: float = 0.0,
    passed_on: signal.Signals | None = None,
    interrupted: bool = False,
    last_lines: Sequence[str] = (),
    slurm_end: float | None = None,
) -> Ending:
    """How a command ended. `returncode` is as `subprocess` gives it: ``-n`` for signal n.

    `passed_on` is a signal that was sent to us and that we sent on; `interrupted` means Ctrl-C was pressed.
    """
    killer, how = signal_of(returncode)
    exit_code = 128 - returncode if returncode < 0 else returncode
    name = killer.name if killer else None

    kills = _oom_kills(oom_before or {}, oom_after or {})
    counted = kills is not None if oom_before and oom_after and returncode else None
    memory = MemoryKnown(counted=counted) if counted is not None else None

    def ended(kind: str, detail: str) -> Ending:
        return Ending(
            kind=kind,  # type: ignore[arg-type]
            exit_code=exit_code,
            signal=name,
            detail=detail,
            seconds=seconds,
            memory=memory,
        )

    if returncode == 0:
        return ended("finished", "The command exited with 0.")
    text = "\n".join(last_lines)
    if kills:
        where, count, sure = kills
        if sure or killer == signal.SIGKILL or _KILLED_CHILD.search(text):
            return ended("oom-killed", f"The kernel's OOM killer took {_processes(count)} {where}; {how}.")
    cancelled = _SLURM_CANCELLED.search(text)
    if cancelled:
        kind = "time-limit" if cancelled[1] == "TIME LIMIT" else "killed"
        return ended(kind, f"Slurm cancelled the job: due to {cancelled[1].lower()}; {how}.")
    if slurm_end is not None and now >= slurm_end and killer in _HOW_STOPPED:
        return ended(
            "time-limit",
            f"The end time that Slurm had set for the job (SLURM_JOB_END_TIME) was reached; {how}.",
        )
    if returncode == TIMEOUT_EXIT:
        return ended(
            "time-limit", f"The exit code {TIMEOUT_EXIT} is the one of timeout(1) when the time is up."
        )
    if interrupted or killer == signal.SIGINT:
        return ended("interrupted", f"It was interrupted (Ctrl-C, SIGINT); {how}.")
    if passed_on is not None:
        return ended("killed", f"{passed_on.name} was sent to stallwatch, which passed it on; {how}.")
    if killer is not None:
        return ended("killed", how[0].upper() + how[1:] + ".")
    return ended("failed", f"The command exited with {exit_code}.")


def killed_within(last_lines: Sequence[str]) -> bool:
    """Whether a launcher tells in these that SIGKILL ended one of its processes."""
    return _KILLED_CHILD.search("\n".join(last_lines)) is not None


def read_oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> dict[str, int]:
    """The kernel's counts of OOM kills: in our control group ("cgroup") and on the whole machine ("host").

    A control group's own counter includes the kills that a limit further up, or the whole machine, asked for.
    """
    counts: dict[str, int] = {}
    host = _counter(proc / "vmstat", "oom_kill")
    if host is not None:
        counts["host"] = host
    try:
        memberships = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        memberships = []
    for line in memberships:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        below = path.lstrip("/")
        if controllers == "":
            files = [cgroups / below / "memory.events", cgroups / "unified" / below / "memory.events"]
        elif "memory" in controllers.split(","):
            # In a container the group's path is that of the host, and its files lie at the mount's top.
            files = [
                cgroups / "memory" / below / "memory.oom_control",
                cgroups / "memory" / "memory.oom_control",
            ]
        else:
            continue
        for file in files:
            own = _counter(file, "oom_kill")
            if own is not None:
                counts["cgroup"] = max(own, counts.get("cgroup", 0))
                break
    return counts


def _counter(path: Path, key: str) -> int | None:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        pass
    return None


def _oom_kills(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[str, int, bool] | None:
    for key, where, sure in (
        ("cgroup", "of this run's control group", True),
        ("host", "on this machine", False),
    ):
        if key in before and after.get(key, 0) > before[key]:
            return where, after[key] - before[key], sure
    return None


def _processes(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"


def signal_of(returncode: int) -> tuple[signal.Signals | None, str]:
    """The signal that ended the command, or the one that a shell or a launcher reports by its exit code."""
    try:
        if returncode < 0:
            number = signal.Signals(-returncode)
            return number, f"the command was ended by {number.name}"
        if returncode > 128 and returncode - 128 in _SHELL_SIGNALS:
            number = signal.Signals(returncode - 128)
            return number, f"the exit code {returncode} stands for {number.name} (128 + {int(number)})"
    except ValueError:
        return None, f"the exit status was {returncode}"
    if returncode in _PASSED_ON:
        number = _PASSED_ON[returncode]
        return (
            number,
            f"the exit code {returncode} stands for {number.name} of a worker (256 - {int(number)})",
        )
    return None, f"the exit code was {returncode}"


_SHELL_SIGNALS = {1, 2, 3, 4, 6, 7, 8, 9, 11, 13, 15, 24, 25}


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
