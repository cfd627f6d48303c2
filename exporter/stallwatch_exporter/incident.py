"""An incident: a live stall, a finding or the end of a run, as facts. Sinks write the words for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import msgspec

from stallwatch_rules.endings import Left, MemoryKnown
from stallwatch_rules.records import Primary
from stallwatch_rules.stacks.records import StallStacks

UNKNOWN_FAILURE = "unknown-failure"  #: the rule of an ending or a silence that no page explains
RANK_GONE = "rank-gone"  #: the rule of a rank that did not end by its own program; no page describes it

Kind = Literal["stall", "finding", "ended"]
Severity = Literal["critical", "warning", "info"]
RANKS: Mapping[str, int] = {"info": 0, "warning": 1, "critical": 2}  #: of severities, the worst highest
Status = Literal["open", "resolved"]
# "unmended" says of one that is open that its run is over, and nobody will ever resolve it.
Resolution = Literal["", "recovered", "run-finished", "run-failed", "run-stopped", "unmended", "unknown"]


class Ending(msgspec.Struct, frozen=True):
    """How the command ended."""

    kind: Literal["finished", "failed", "oom-killed", "killed", "time-limit", "interrupted", "unknown"]
    exit_code: int | None  #: what the shell would see; 128 + n for signal n
    signal: str | None = None  #: such as "SIGKILL"
    detail: str = ""  #: the evidence, one English sentence
    seconds: float = 0.0  #: how long the command ran
    left: list[Left] = []  #: ranks that had ended by themselves, without an error, before the others
    memory: MemoryKnown | None = None  #: what was seen of its memory, where something was killed
    quiet: float | None = None  #: seconds without a step when somebody asked it to end, where that is known

    @property
    def failed(self) -> bool | None:
        """Whether the run failed; ``None`` where the ending does not tell."""
        return None if self.kind in ("unknown", "interrupted") else self.kind != "finished"


class Incident(msgspec.Struct, kw_only=True):
    """One episode of one rule in one run. Sinks get it as it opens, changes and resolves."""

    id: str  #: "<run>/<kind>/<rule>/<episode>" as it began; the same whatever becomes of it
    run: str
    kind: Kind
    rule: str
    severity: Severity
    status: Status
    episode: int  #: 1, 2, … per run, kind and rule
    opened_at: float
    updated_at: float
    resolved_at: float | None = None
    resolution: Resolution = ""
    host: str = ""
    phase: str = "train"
    rank: int | None = None
    step: int | None = None
    total_steps: int | None = None
    last_loss: float | None = None
    stalled_seconds: float | None = None
    threshold_seconds: float | None = None
    learning: bool = False  #: that is what is allowed while the run's own rhythm is not known
    harm: str = "fatal"
    count: int = 1
    evidence: list[str] = []  #: redacted lines
    exception: str = ""  #: in short, where no rule knows the cause: ``ValueError: message (train.py:8)``
    note: str = ""  #: the evidence behind the harm
    primary: Primary | None = None  #: the diagnosis at that moment
    ending: Ending | None = None
    asking: bool = False  #: its ranks were being asked where they are as it opened; `stacks` will tell
    stacks: StallStacks | None = None  #: where the ranks of this host were; it comes after the opening

    @property
    def began_as(self) -> tuple[str, str]:
        """Its kind and rule as it opened: a finding may have become its run's end, for a further cause."""
        parts = self.id.rsplit("/", 3)
        return (
            (parts[1], parts[2]) if len(parts) == 4 and parts[1] in get_args(Kind) else (self.kind, self.rule)
        )

    @property
    def became_end(self) -> bool:
        """Whether it was told as a finding first, and is what its run died of."""
        return self.kind == "ended" and self.began_as[0] != "ended"

    @property
    def standing(self) -> str:
        """What is told of it once each: ``open``, ``resolved``, or ``ended`` of what became its run's end."""
        return "ended" if self.became_end else self.status

    @property
    def is_last_word(self) -> bool:
        """Whether it tells of the run's end, or of what that left unmended: nothing comes after it."""
        return self.kind == "ended" or self.resolution == "unmended"

    @property
    def outlasted(self) -> bool:
        """Whether it was still open when its run ended: nothing was mended."""
        return self.resolution in ("run-failed", "run-stopped", "unmended")

    @property
    def unwatched(self) -> bool:
        """Whether it was closed because its agent is gone, which says nothing of the run."""
        return self.status == "resolved" and self.resolution == "unknown"


Sink = Callable[[Incident], None]
"""Told of every change. Must return at once; what it raises is caught and counted by the agent.

A sink may also have a method ``alive(problem)``. It is called about once a second, at every look at the run,
with what could not be seen since the last one; "" for nothing.
"""
