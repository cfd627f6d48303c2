"""The records that all parts of Stallwatch exchange: lines, samples, matches, and the diagnosis.

The records are plain data. Text for people is stored as a message (`messages`), which reports translate.
Times are Unix timestamps in seconds (float), unless the comment on a field specifies ISO 8601. Sizes are in
bytes, and durations are in seconds. The diagnosis records are the JSON contract of
``stallwatch diagnose --json``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stallwatch_rules.messages import Text
from stallwatch_rules.stacks.records import StackGroup

Role = Literal["cause", "symptom", "wrapper", "notice"]
Harm = Literal["fatal", "degrading", "harmless", "by-progress"]
#: docs/verdict.md explains each verdict. Version 0.1 and schema 1 of the JSON report do not have the verdicts
#: "interrupted", "finished", "unfinished", and "no-evidence".
Verdict = Literal[
    "failed",
    "stalled",
    "unknown-failure",
    "degraded",
    "interrupted",
    "finished",
    "unfinished",
    "healthy",
    "no-evidence",
    "no-training-log",
]
#: The verdicts on a run that trained. Other runs can be compared to such a run.
TRAINS: tuple[Verdict, ...] = ("healthy", "degraded", "finished", "unfinished", "interrupted")
#: The actor that stopped a run from outside: a user (Control+C or SIGINT), ``scancel``, a scheduler, or the
#: sender of another signal.
Interrupter = Literal["user", "cancelled", "time-limit", "preempted", "signal"]
Inferred = Literal["", "place", "words"]  # "words" appears only in reports from version 0.1
Phase = Literal["init", "train", "eval", "save", "rollout", "weight-sync", "idle"]

SCHEMA = 2  #: version of these records; reports are also written in schema 1


class Line(msgspec.Struct, frozen=True):
    """One line of a log. Prefixes such as timestamps and ranks are removed from its text."""

    text: str  #: text without rank prefix, ANSI codes, container prefix, and line end
    source: str  #: display name of the file or pipe
    number: int  #: 1-based line number in the source
    rank: int | None = None  #: global rank, if the prefix or the file's name contains it
    time: float | None = None  #: Unix seconds of the line's timestamp, or of the live reading of the line
    #: True if the time zone is known. Otherwise, the time is treated as UTC, but reports do not show "UTC".
    zoned: bool = False
    host: str = ""  #: host that wrote the line, if pdsh put the host's name in front of the line
    process: str = ""  #: name and ID of the process that wrote the line, if Ray put them in front of the line


EVALUATION = "text evaluation"  #: series for the output of evaluations, whose steps are not steps of the run


class Sample(msgspec.Struct, frozen=True):
    """The values read from one line. Values that the line does not contain are ``None``."""

    rank: int | None
    time: float | None
    step: int | None = None  #: number of completed optimizer steps
    total_steps: int | None = None
    #: The values, which can be NaN: "loss", "grad_norm", "learning_rate", "loss_scale", "step_seconds",
    #: "skipped_steps", "memory_allocated_bytes", "memory_peak_bytes", "epoch", "elapsed_seconds" (since the
    #: training started, by the trainer's count), "overflow" (1: a step was skipped).
    values: dict[str, float] = {}
    from_bar: bool = False  #: True if read from a progress bar, which can belong to an evaluation
    series: str = ""  #: name of the counter, because a log can contain several counters


class Match(msgspec.Struct, frozen=True):
    """A match of a rule in one line."""

    rule: str
    line: Line
    captures: dict[str, str]
    step: int | None = None  #: the last step seen in the run when the line appeared


class Place(msgspec.Struct):
    """The position in a log at which a match or an event appeared."""

    rank: int | None
    file: str
    line: int
    time: str | None  #: ISO 8601: with "Z" if the zone is known, otherwise as in the log
    step: int | None
    text: Text


class Primary(msgspec.Struct):
    """The primary cause of a failure or stall, with its fix."""

    rule: str
    title: Text
    role: Role
    harm: Harm
    confidence: float  #: from 0 to 1
    rank: int | None
    file: str
    line: int
    time: str | None
    step: int | None
    evidence: list[Text]
    captures: dict[str, str]
    why: Text
    fixes: list[Text]
    #: Groups of ranks that delay the run. The title names these ranks.
    apart: list[StackGroup] = []
    inferred: Inferred = ""  #: basis on which the rule was inferred, if no rule matches the exception's text
    frames: list[str] = []  #: stack frames of the exception, as in ``UnknownException``
    host: str = ""  #: host of the rank or of the line, if the run has several hosts


class HostRanks(msgspec.Struct):
    """One of several hosts of a run."""

    host: str
    ranks: list[int]
    #: Seconds by which the host's clock is ahead of most other clocks, or None if unknown or at most 2 s.
    clock_ahead_seconds: float | None = None
    #: True if the host has a log. Otherwise, the host is inferred from the order of the other hosts' ranks.
    logged: bool = True


class Finding(msgspec.Struct):
    """All matches of one rule in the run."""

    rule: str
    title: Text
    role: Role
    harm: Harm  #: impact on this run ("by-progress" if the log has too little evidence)
    count: int
    ranks: list[int]
    first: Place
    last: Place
    note: Text = ""  #: the evidence for the impact
    at_least: bool = False  #: True if `count` and `ranks` are lower bounds, because files were skipped


class NearPage(msgspec.Struct):
    """A rule page that uses words similar to the words of an unknown failure. Reports show it as a hint."""

    rule: str
    title: Text
    score: float  #: from 0 to 0.9


class UnknownException(msgspec.Struct):
    """An exception that ended processes and matches no rule. All ranks that raised it share one record."""

    exception: str
    message: str
    ranks: list[int]
    count: int
    first: Place
    frames: list[str]  #: stack frames, innermost last
    #: The first exception of the chain, if this exception was raised while another exception was handled.
    root: str = ""
    nearest: list[NearPage] = []  #: the most similar pages, most similar first
    advice: Text = ""  #: where users can look, depending on the exception's type and message
    #: The line of code that raised the exception, if the exception has no message.
    source: str = ""

    @property
    def described(self) -> str:
        """The exception with its message, or else with the line of code (if known) that raised it."""
        return f"{self.exception}: {self.message or (self.source and f'`{self.source}`')}".removesuffix(": ")


class NewLines(msgspec.Struct):
    """Lines with the same template that match no rule and first appear near the end of the run."""

    template: str  #: text of the lines, with variable parts in brackets: ``worker <n> lost <path>``
    exemplar: str
    level: Literal["error", "warning", "info"]
    count: int
    ranks: list[int]
    first: Place
    last: Place


_NEAR_END = 0.9  # a step past this share of all steps can be the last step of a run


def is_far_from_end(step: float | None, total: float | None) -> bool:
    """Return whether a step is before the last tenth of all steps, or False if either number is unknown.

    The last tenth is a margin, because steps can be counted from 0, and a trainer that logs only every n-th
    step does not log the last steps.
    """
    return step is not None and bool(total) and step + 1 < _NEAR_END * (total or 0)


class Progress(msgspec.Struct):
    """The progress of the run."""

    first_step: int | None = None
    last_step: int | None = None
    total_steps: int | None = None
    last_loss: float | None = None  #: the last loss (never NaN or infinite in JSON; see finding ``loss-nan``)
    stalled_after_step: int | None = None
    finished: bool = False
    behind: list[int] = []  #: ranks whose steps ended long before the steps of the other ranks

    @property
    def stops_early(self) -> bool:
        """True if the last step is far from the last planned step and no message reports the end."""
        return not self.finished and is_far_from_end(self.last_step, self.total_steps)


class FindingChange(msgspec.Struct):
    """A finding that an assessor added (no old values), removed (no new values), or changed."""

    rule: str
    harm_before: Harm | None
    harm: Harm | None
    role_before: Role | None
    role: Role | None
    note: Text = ""  #: the new evidence, if any


#: The reason why a finding is not the root cause. Reports show the reasons in this order.
PassedReason = Literal["explained", "harm", "role", "order", "explained-by-others"]


class Noted(msgspec.Struct):
    """A note from an assessor for the assessors that run after it. Findings do not show the note."""

    rule: str | None  #: rule of the finding, or ``None`` if the note is about the run
    facts: list[str] = []
    explains: list[str] = []  #: rules of the other findings that this finding explains


class PassedOver(msgspec.Struct):
    """A harmful finding that was not chosen as the root cause, with the reason."""

    rule: str
    reason: PassedReason


class Contribution(msgspec.Struct):
    """The contribution of one assessor, or of the selection of the root cause, to the verdict."""

    assessor: str  #: an assessor's name, ``matches`` (the rules that matched), or ``root-cause`` (the choice)
    changes: list[FindingChange]
    noted: list[Noted] = []
    passed_over: list[PassedOver] = []


class Series(msgspec.Struct):
    """The values of one metric over a run's steps, thinned for a chart."""

    name: str  #: "loss", "grad_norm", "learning_rate", "loss_scale", or "step_seconds"
    rank: int | None
    steps: list[float]
    values: list[float | None]  #: one value for each step, or ``None`` if NaN or infinite
    by: Literal["step", "epoch"] = "step"  #: unit of ``steps``: epochs if the lines have no step
    of_ranks: int = 0  #: number of ranks with this metric if only some of them have a series, or else 0


class Stats(msgspec.Struct):
    """The amount of data that was read."""

    files: int = 0
    bytes: int = 0
    lines: int = 0
    seconds: float = 0.0  #: time spent on reading, or 0 if lines were read live
    unread_files: int = 0  #: number of files that were not read to the end because time ran out
    unread_bytes: int = 0  #: number of unread bytes in these files, if known


class Start(msgspec.Struct):
    """One of several starts of a job in the same log."""

    number: int  #: number of the start in the log, from 1
    file: str
    first_line: int
    last_line: int
    verdict: Verdict
    rule: str | None  #: rule of the primary cause
    title: Text  #: headline of the report
    first_step: int | None = None
    last_step: int | None = None
    total_steps: int | None = None
    began: str | None = None  #: ISO 8601
    ended: str | None = None
    reported: bool = False  #: True if this report is about this start
    interrupted_by: Interrupter | None = None  #: who or what stopped the start from outside, if known


class Diagnosis(msgspec.Struct):
    """The findings in causal order, the primary cause, its fix, the evidence, and the unknown exceptions."""

    verdict: Verdict
    primary: Primary | None = None
    findings: list[Finding] = []
    unknown: list[UnknownException] = []
    progress: Progress = msgspec.field(default_factory=Progress)
    environment: dict[str, str] = {}
    stats: Stats = msgspec.field(default_factory=Stats)
    #: Facts for the reader, such as an unreadable file or a log that stops without an ending.
    notes: list[Text] = []
    digest: list[Text] = []  #: how the ranks ended, one line for each group, if they ended differently
    ending: Text = ""  #: how the run's process ended, if known
    #: Lines that first appear before the end of a failed or stalled run, most significant first.
    new_lines: list[NewLines] = []
    schema: int = SCHEMA
    explained: list[Contribution] = []  #: how the findings were derived (in the JSON report on request)
    series: list[Series] = []  #: curves for charts (not in JSON, and empty while a run is watched)
    interrupted_by: Interrupter | None = None  #: who or what stopped the run from outside, if known
    starts: list[Start] = []  #: starts in the log if it contains several, newest first
    hosts: list[HostRanks] = []  #: hosts of a run across several hosts, if known

    @property
    def in_trouble(self) -> bool:
        """True if the run no longer trains, for a reason that a person needs to check."""
        return _in_trouble(self.verdict, self.primary)

    @property
    def blamed(self) -> list[int]:
        """Return the ranks to blame: the rank of the cause, and ranks that delay others or fall behind."""
        if self.primary is None:
            return [*(self.unknown[0].ranks[:1] if self.unknown else ()), *self.progress.behind]
        own = [] if self.primary.rank is None else [self.primary.rank]
        return [*own, *(rank for group in self.primary.apart for rank in group.ranks), *self.progress.behind]


class JobSummary(msgspec.Struct):
    """The summary of one of several jobs whose logs were read together."""

    name: str  #: the scheduler's number or the name of the run or job; ``other`` for files without a job
    verdict: Verdict
    badge: Text  #: the verdict in words
    primary: str | None  #: the rule of the primary cause
    confidence: float | None  #: confidence in the primary cause
    title: Text  #: headline of the report
    last_step: int | None
    total_steps: int | None
    finished: bool
    #: ISO 8601 time of the last output, from the log, or from the files if the log contains no time.
    last_time: str | None
    files: list[str]
    reported: bool = False  #: True if this report is about this job
    interrupted_by: Interrupter | None = None

    @property
    def in_trouble(self) -> bool:
        """True if the job no longer trains, for a reason that a person needs to check."""
        return _in_trouble(self.verdict, self.primary)


def _in_trouble(verdict: Verdict, primary: Primary | str | None) -> bool:
    """Return whether a person needs to check the run. Interrupted runs with a primary cause are included.

    A run that the system stopped has a primary cause, but a run that a person stopped has none.
    """
    if verdict == "interrupted":
        return primary is not None
    return verdict in ("failed", "stalled", "unknown-failure")
