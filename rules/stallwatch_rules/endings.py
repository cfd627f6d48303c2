"""What was seen of processes that ended, as an agent keeps it. Light to import: lists of runs read it."""

from __future__ import annotations

from typing import Literal

import msgspec

from stallwatch_rules.messages import Text

GONE_ON = 5  #: steps after which the others do not only end, one after the other: they go on without it
NEAR, FAR = 0.9, 0.7  #: shares of the limit above which memory was nearly used up, and below which it was not

Speaks = Literal["for", "against", "far", ""]
EndingKind = Literal["finished", "failed", "oom-killed", "killed", "time-limit", "interrupted", "unknown"]
#: Of "ended": someone or a time limit asked the run to end, or it finished.
Outcome = Literal["recovered", "ended", "crashed"]

_STOPPED_BY = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


class MemoryKnown(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was seen of the memory of a run that ended; sizes in bytes, 0 for what was not seen."""

    counted: bool | None = None  #: whether the kernel's count of OOM kills rose, if it could be read
    held: int = 0  #: the most that the command and all its processes were seen to hold
    limit: int = 0  #: what they may hold before the kernel ends one
    ranks: dict[int, int] = {}  #: the most that each rank said it held

    @property
    def most(self) -> int:
        """The most that was seen to be held, by whom ever."""
        return max(self.held, sum(self.ranks.values()))

    @property
    def speaks(self) -> Speaks:
        """For a host that ran out of memory, against it, or only of memory that was far from its limit.

        Programs that watch the memory beside the kernel (earlyoom, systemd-oomd, Ray, Slurm) leave its count
        as it is, but they kill only where memory is nearly used up.
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
    """A process of a run that ended by itself, without an error, while others went on."""

    rank: int | None
    step: int | None = None  #: the last one that was seen before
    behind: int = 0  #: steps that the others were seen to make after it had left


class Crash(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process of a run that failed although the command itself returned 0."""

    rank: int | None = None
    pid: int | None = None
    code: int | None = None  #: its exit code, ``-n`` for signal n; ``None``: nobody saw it
    error: str = ""  #: what it printed last of its failure, redacted
    step: int | None = None  #: where the run was, or the rank if that is known
    total: int | None = None
    by: Literal["process", "silence", "log", "loss"] = "process"  #: who says so
    hidden: Literal["pipe", "wait", ""] = ""  #: how the command lost the exit code, as far as its words tell


class Running(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rank's process that outlived the command."""

    rank: int
    pid: int


class Ending(msgspec.Struct, frozen=True):
    """How the command ended."""

    kind: EndingKind
    exit_code: int | None  #: what the shell would see; 128 + n for signal n
    signal: str | None = None  #: such as "SIGKILL"
    detail: Text = ""  #: the evidence
    seconds: float = 0.0  #: how long the command ran
    left: list[Left] = []  #: ranks that had ended by themselves, without an error, before the others
    memory: MemoryKnown | None = None  #: what was seen of its memory, where something was killed
    quiet: float | None = None  #: seconds without a step when somebody asked it to end, where that is known
    crash: Crash | None = None  #: what failed although the command returned 0
    codes: dict[int, int | None] = {}  #: of ranks that failed, the first one first; ``None``: nobody saw it
    running: list[Running] = []  #: ranks that were still alive when the command had ended

    @property
    def failed(self) -> bool | None:
        """Whether the run failed; ``None`` where the ending does not tell."""
        return None if self.kind in ("unknown", "interrupted") else self.kind != "finished"

    @property
    def outcome(self) -> Outcome | None:
        """How an incident ends that was open then; ``None`` if the ending is not known."""
        if self.kind == "unknown":
            return None
        stopped = self.kind == "killed" and self.signal in _STOPPED_BY
        return "ended" if stopped or self.kind in ("finished", "interrupted", "time-limit") else "crashed"
