"""Records in which an agent stores how the processes of a run ended.

This module imports little, because lists of runs must load quickly.
"""

from __future__ import annotations

from contextlib import suppress
from signal import Signals
from typing import Literal

import msgspec

from stallwatch_rules.messages import Message, Text, has, message

GONE_ON = 5  #: minimum number of steps that other ranks complete after the end of a rank that left early
_DYING_SECONDS = 15.0  # maximum seconds from the exception that ends a process to the end of the process
NEAR, FAR = 0.9, 0.7  #: shares of the limit: above NEAR, memory ran out; below FAR, memory did not run out

Speaks = Literal["for", "against", "far", ""]
EndingKind = Literal["finished", "failed", "oom-killed", "killed", "time-limit", "interrupted", "unknown"]
#: Outcome of an incident. "ended": a person or a time limit stopped the run, or the run finished.
Outcome = Literal["recovered", "ended", "crashed"]

BY_SIGKILL = (-9, 137)  #: exit codes of a process that SIGKILL ended, and of a shell that ran the process
_STOPPED_BY = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


class MemoryUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The memory that a run used before it ended. Sizes are in bytes, and 0 means unknown."""

    counted: bool | None = None  #: True if the kernel's count of OOM kills rose, or None if unreadable
    held: int = 0  #: the highest observed memory use of the command and all its processes
    limit: int = 0  #: the limit above which the kernel kills a process
    ranks: dict[int, int] = {}  #: rank → the highest memory use that the rank reported

    @property
    def most(self) -> int:
        """The highest observed memory use, from any source, in bytes."""
        return max(self.held, sum(self.ranks.values()))

    @property
    def speaks(self) -> Speaks:
        """Evidence "for" or "against" the claim that the host ran out of memory, or "" if there is none.

        If memory use stayed far below the limit, the result depends on the kernel's count of OOM kills:
        "against" if the count did not rise, or "far" if the count was not readable. The count alone is not
        evidence, because it does not change if programs other than the kernel (such as earlyoom,
        systemd-oomd, Ray, or Slurm) kill processes when memory is nearly used up.
        """
        held = self.most
        if self.counted:
            return "for"
        if not held or not self.limit:
            return ""
        if held >= NEAR * self.limit:
            return "for"
        if held < FAR * self.limit:
            return "far" if self.counted is None else "against"
        return ""


class ExitedRank(msgspec.Struct, frozen=True):
    """A process that ended without an error while other processes of the run continued."""

    rank: int | None
    step: int | None = None  #: the last step seen before the process ended
    behind: int = 0  #: number of steps that the other ranks completed after the process had ended


class Crash(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process of a run that failed although the command itself returned 0."""

    rank: int | None = None
    pid: int | None = None
    code: int | None = None  #: exit code, ``-n`` for signal n, or ``None`` if not observed
    error: str = ""  #: the last message about the failure, redacted
    step: int | None = None  #: step of the run, or of the rank if known
    total: int | None = None
    by: Literal["process", "silence", "log", "loss"] = "process"  #: source of the evidence
    #: The reason why the command returned 0, if the command line shows the reason.
    hidden: Literal["pipe", "wait", ""] = ""

    time: float | None = None  #: time at which the process ended, in Unix seconds, if observed

    def is_at(self, step: int | None, time: float | None, every: int = 1) -> bool:
        """Return whether the process ended shortly after this time, or after this step if a time is unknown.

        If other processes continue, the steps after a failure do not show that the process handled the
        failure. `every` is the logging interval in steps.
        """
        if self.by != "process":
            return False
        if self.time is not None and time is not None:
            return 0 <= self.time - time + 1 <= _DYING_SECONDS
        return self.step is not None and step is not None and 0 <= self.step - step <= max(GONE_ON, every)


def signal_name(code: int | None) -> str:
    """Return the name of the signal in the exit code ``-n`` of a process, or "" if there is no such name."""
    with suppress(ValueError):  # a real-time signal has no name
        return Signals(-code).name if code is not None and code < 0 else ""
    return ""


class SurvivingRank(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process of a rank that was still alive after the command had ended."""

    rank: int
    pid: int


class Ending(msgspec.Struct, frozen=True):
    """The ending of the command, with the evidence for it."""

    kind: EndingKind
    exit_code: int | None  #: exit code as seen by the shell (128 + n for signal n)
    signal: str | None = None  #: the signal's name, such as "SIGKILL"
    detail: Text = ""  #: the evidence for the kind of ending
    seconds: float = 0.0  #: duration of the command
    left: list[ExitedRank] = []  #: ranks that ended without an error before the other ranks
    memory: MemoryUse | None = None  #: observed memory, if a process was killed
    quiet: float | None = None  #: seconds without a step when the end of the command was requested, if known
    crash: Crash | None = None  #: the process that failed although the command returned 0
    #: failed rank → exit code, or ``None`` if not observed; the rank that failed first comes first
    codes: dict[int, int | None] = {}
    running: list[SurvivingRank] = []  #: ranks that were still alive when the command had ended

    @property
    def failed(self) -> bool | None:
        """True if the run failed, or ``None`` if the kind of ending does not show whether the run failed."""
        return None if self.kind in ("unknown", "interrupted") else self.kind != "finished"

    @property
    def stopped(self) -> bool:
        """True if a person, a scheduler, or a time limit stopped the run from outside."""
        signaled = self.kind == "killed" and self.signal in _STOPPED_BY
        return signaled or self.kind in ("interrupted", "time-limit")

    @property
    def aborted(self) -> bool:
        """True if the agent ended the run because the run stalled."""
        return has(self.detail, "run.aborted")

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of an incident that was open when the run ended, or ``None`` if the end is unknown."""
        if self.kind == "unknown":
            return None
        return "ended" if self.stopped or self.kind == "finished" else "crashed"


def ending_name(ending: Ending | None) -> Message:
    """Return a short description of how a run ended, for the terminal, chat messages, pages, and lists."""
    if ending is None:
        return message("endings.unknown")
    if ending.stopped:
        return interruption(ending)
    kind = "failed" if ending.kind == "killed" and not ending.signal else ending.kind
    return message(f"endings.{kind}", signal=ending.signal or "")


def interruption(ending: Ending | None) -> Message:
    """Return a phrase for who or what stopped the run: a person, a scheduler, a time limit, or the agent."""
    if ending is None or not ending.stopped:
        return message("endings.interrupted")
    if ending.aborted:
        return message("endings.by-stallwatch")
    if ending.kind == "time-limit":
        return message("endings.by-time-limit")
    if ending.signal == "SIGINT" or (ending.kind == "interrupted" and ending.signal != "SIGQUIT"):
        return message("endings.by-user")
    return message("endings.by-signal", signal=ending.signal or "")
