"""Observations of processes that ended, as an agent stores them. Light to import: lists of runs read it."""

from __future__ import annotations

from typing import Literal

import msgspec

from stallwatch_rules.messages import Text

GONE_ON = 5  #: steps after which the others do not merely end one after the other, but continue without it
NEAR, FAR = 0.9, 0.7  #: shares of the limit: above, memory was nearly used up; below, it was not

Speaks = Literal["for", "against", "far", ""]
EndingKind = Literal["finished", "failed", "oom-killed", "killed", "time-limit", "interrupted", "unknown"]
#: "ended": a person or a time limit stopped the run, or it finished.
Outcome = Literal["recovered", "ended", "crashed"]

_STOPPED_BY = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


class MemoryKnown(msgspec.Struct, frozen=True, omit_defaults=True):
    """Observed memory of a run that ended; sizes in bytes, 0 if unknown."""

    counted: bool | None = None  #: whether the kernel's count of OOM kills rose, if it could be read
    held: int = 0  #: the most that the command and all its processes were seen to use
    limit: int = 0  #: what they may use before the kernel kills one
    ranks: dict[int, int] = {}  #: the most that each rank reported

    @property
    def most(self) -> int:
        """The most memory that was seen in use, by any source."""
        return max(self.held, sum(self.ranks.values()))

    @property
    def speaks(self) -> Speaks:
        """Evidence for a host that ran out of memory, against it, or only of use far from the limit.

        Programs that watch the memory beside the kernel (earlyoom, systemd-oomd, Ray, Slurm) leave its count
        unchanged, but they kill only if memory is nearly used up.
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


class Left(msgspec.Struct, frozen=True):
    """A process of a run that ended by itself, without an error, while others continued."""

    rank: int | None
    step: int | None = None  #: the last step seen before
    behind: int = 0  #: observed steps of the others after it had left


class Crash(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process of a run that failed although the command itself returned 0."""

    rank: int | None = None
    pid: int | None = None
    code: int | None = None  #: its exit code, ``-n`` for signal n; ``None``: not observed
    error: str = ""  #: its last message about the failure, redacted
    step: int | None = None  #: step of the run, or of the rank if known
    total: int | None = None
    by: Literal["process", "silence", "log", "loss"] = "process"  #: source of the evidence
    hidden: Literal["pipe", "wait", ""] = ""  #: how the command lost the exit code, as far as its words show


class Running(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rank's process that outlived the command."""

    rank: int
    pid: int


class Ending(msgspec.Struct, frozen=True):
    """How the command ended."""

    kind: EndingKind
    exit_code: int | None  #: exit code as seen by the shell; 128 + n for signal n
    signal: str | None = None  #: such as "SIGKILL"
    detail: Text = ""  #: the evidence
    seconds: float = 0.0  #: how long the command ran
    left: list[Left] = []  #: ranks that ended by themselves, without an error, before the others
    memory: MemoryKnown | None = None  #: observed memory, if something was killed
    quiet: float | None = None  #: seconds without a step when it was asked to end, if known
    crash: Crash | None = None  #: the process that failed although the command returned 0
    codes: dict[int, int | None] = {}  #: of ranks that failed, the first one first; ``None``: not observed
    running: list[Running] = []  #: ranks that were still alive when the command had ended

    @property
    def failed(self) -> bool | None:
        """Whether the run failed; ``None`` if the ending does not show it."""
        return None if self.kind in ("unknown", "interrupted") else self.kind != "finished"

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of an incident that was open then; ``None`` if the ending is not known."""
        if self.kind == "unknown":
            return None
        stopped = self.kind == "killed" and self.signal in _STOPPED_BY
        return "ended" if stopped or self.kind in ("finished", "interrupted", "time-limit") else "crashed"
