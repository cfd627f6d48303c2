"""What was seen of processes that ended, as an agent keeps it. Light to import: lists of runs read it."""

from __future__ import annotations

from typing import Literal

import msgspec

GONE_ON = 5  #: steps after which the others do not only end, one after the other: they go on without it
NEAR, FAR = 0.9, 0.7  #: shares of the limit above which memory was nearly used up, and below which it was not

Speaks = Literal["for", "against", "far", ""]


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
