"""The records that every part of Stallwatch exchanges: lines, samples, matches and the diagnosis.

Plain data. Text for people is a message (`messages`), which reports turn into words.
Times are Unix seconds (float) unless a field says ISO 8601; sizes are bytes;
durations are seconds. The diagnosis records are the JSON contract of ``stallwatch diagnose --json``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stallwatch_rules.messages import Text
from stallwatch_rules.stacks.records import StackGroup

Role = Literal["cause", "symptom", "wrapper", "notice"]
Harm = Literal["fatal", "degrading", "harmless", "by-progress"]
#: docs/verdict.md explains each. Version 0.1, and schema 1 of the JSON report, have no "interrupted",
#: "finished", "unfinished" and "no-evidence".
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
#: The verdicts on a run that trained, to which other runs may be compared.
TRAINS: tuple[Verdict, ...] = ("healthy", "degraded", "finished", "unfinished", "interrupted")
#: Who stopped a run from outside: Ctrl-C or SIGINT, ``scancel``, a scheduler, or another signal's sender.
Interrupter = Literal["user", "cancelled", "time-limit", "preempted", "signal"]
Inferred = Literal["", "place", "words"]  # the last in reports of version 0.1 only
Phase = Literal["init", "train", "eval", "save", "rollout", "weight-sync", "idle"]

SCHEMA = 2  #: version of these records; reports also have schema 1


class Line(msgspec.Struct, frozen=True):
    """One line of a log, its prefixes taken off."""

    text: str  #: without rank prefix, ANSI codes, container prefix and line end
    source: str  #: the file (or pipe) it came from, named for the user
    number: int  #: 1-based line in that source
    rank: int | None = None  #: global rank, if the prefix or the file's name contains it
    time: float | None = None  #: from the line's own timestamp, else when it was read live
    zoned: bool = False  #: the time's zone is known; else it is taken as UTC, but not labeled UTC in reports


EVALUATION = "text evaluation"  #: the series of the output of evaluations: not steps of the run


class Sample(msgspec.Struct, frozen=True):
    """Numbers in one line; ``None`` for those it does not contain."""

    rank: int | None
    time: float | None
    step: int | None = None  #: optimizer steps done
    total_steps: int | None = None
    values: dict[str, float] = {}  #: "loss", "grad_norm", "learning_rate", "loss_scale", "step_seconds",
    #: "skipped_steps", "memory_allocated_bytes", "memory_peak_bytes", "epoch", "elapsed_seconds" (since the
    #: training started, by the trainer's count), "overflow" (1: a step was skipped); never null, may be NaN
    from_bar: bool = False  #: read from a progress bar, which may be an evaluation's
    series: str = ""  #: the counter in its source: a log may hold several that count differently


class Match(msgspec.Struct, frozen=True):
    """A rule that fired at one place."""

    rule: str
    line: Line
    captures: dict[str, str]
    step: int | None = None  #: the last step seen in the run when the line appeared


class Place(msgspec.Struct):
    """The place where something was seen."""

    rank: int | None
    file: str
    line: int
    time: str | None  #: ISO 8601: with "Z" if the zone is known, otherwise as in the log
    step: int | None
    text: Text


class Primary(msgspec.Struct):
    """The primary cause, with its fix."""

    rule: str
    title: Text
    role: Role
    harm: Harm
    confidence: float  #: 0..1
    rank: int | None
    file: str
    line: int
    time: str | None
    step: int | None
    evidence: list[Text]
    captures: dict[str, str]
    why: Text
    fixes: list[Text]
    apart: list[StackGroup] = []  #: odd ranks, in no collective: each title starts with their place
    inferred: Inferred = ""  #: basis of the conclusion if no rule has the exception's wording
    frames: list[str] = []  #: the calls of the exception that it was read from, as in ``UnknownException``
    host: str = ""  #: host of the rank, in a run over several hosts


class HostRanks(msgspec.Struct):
    """One of several hosts of a run."""

    host: str
    ranks: list[int]
    clock_ahead_seconds: float | None = None  #: relative to most other hosts, if more than two seconds
    logged: bool = True  #: it has a log; else it is inferred from the order of the others' ranks


class Finding(msgspec.Struct):
    """All matches of one rule in the run."""

    rule: str
    title: Text
    role: Role
    harm: Harm  #: judged for this run; "by-progress" if the log has too little evidence
    count: int
    ranks: list[int]
    first: Place
    last: Place
    note: Text = ""  #: the evidence behind the harm
    at_least: bool = False  #: files that print the same were not read: `count` and `ranks` are lower bounds


class NearPage(msgspec.Struct):
    """A rule page with words similar to those of an unknown failure: a hint, not a claim."""

    rule: str
    title: Text
    score: float  #: 0..0.9


class UnknownException(msgspec.Struct):
    """A final exception that no rule knows, folded over the ranks."""

    exception: str
    message: str
    ranks: list[int]
    count: int
    first: Place
    frames: list[str]  #: innermost last, user frames before library frames
    root: str = ""  #: the first exception of the chain, if this one was raised while handling another
    nearest: list[NearPage] = []  #: the most similar pages, the nearest first
    advice: Text = ""  #: where to look, by its type and words


class NewLines(msgspec.Struct):
    """Lines of one wording that no rule knows, and that are new before the run's end."""

    template: str  #: variable parts are in brackets: ``worker <n> lost <path>``
    exemplar: str
    level: Literal["error", "warning", "info"]
    count: int
    ranks: list[int]
    first: Place
    last: Place


class Progress(msgspec.Struct):
    """The progress of the run."""

    first_step: int | None = None
    last_step: int | None = None
    total_steps: int | None = None
    last_loss: float | None = None  #: never NaN or inf in JSON; see ``Finding`` loss-nan
    stalled_after_step: int | None = None
    finished: bool = False
    behind: list[int] = []  #: ranks whose steps ended long before the others'


class FindingChange(msgspec.Struct):
    """A finding that an assessor added (empty before), removed (empty after) or changed."""

    rule: str
    harm_before: Harm | None
    harm: Harm | None
    role_before: Role | None
    role: Role | None
    note: Text = ""  #: the evidence, if new


#: Why a finding is not the root cause, in the order of reports.
PassedReason = Literal["explained", "harm", "role", "order", "explained-by-others"]


class Noted(msgspec.Struct):
    """An assessor's note for later assessors, which findings do not show."""

    rule: str | None  #: the finding; ``None`` for the run
    facts: list[str] = []
    explains: list[str] = []  #: rules of the other findings that it now explains


class PassedOver(msgspec.Struct):
    """A finding that did harm but was not chosen as the root cause."""

    rule: str
    reason: PassedReason


class Contribution(msgspec.Struct):
    """The contribution of one assessor, or of the choice of the root cause, to a verdict."""

    assessor: (
        str  #: of ``diagnosis.assessors``; ``matches`` (the rules that fired), ``root-cause`` (the choice)
    )
    changes: list[FindingChange]
    noted: list[Noted] = []
    passed_over: list[PassedOver] = []


class Series(msgspec.Struct):
    """A number over a run's steps, thinned for a chart."""

    name: str  #: "loss", "grad_norm", "learning_rate", "loss_scale" or "step_seconds"
    rank: int | None
    steps: list[float]
    values: list[float | None]  #: one per step; ``None`` if it was NaN or infinite


class Stats(msgspec.Struct):
    """How much was read."""

    files: int = 0
    bytes: int = 0
    lines: int = 0
    seconds: float = 0.0  #: duration of the reading; 0 if lines were read live
    unread_files: int = 0  #: files not read to the end for lack of time
    unread_bytes: int = 0  #: unread bytes of these, as far as known


class Start(msgspec.Struct):
    """One of several starts of a training in the same log."""

    number: int  #: 1 for the first
    file: str
    first_line: int
    last_line: int
    verdict: Verdict
    rule: str | None  #: rule of its primary cause
    title: Text  #: subject of the verdict
    first_step: int | None = None
    last_step: int | None = None
    total_steps: int | None = None
    began: str | None = None  #: ISO 8601
    ended: str | None = None
    reported: bool = False  #: whether this is the report of this start
    interrupted_by: Interrupter | None = None  #: as in the diagnosis


class Diagnosis(msgspec.Struct):
    """The findings in causal order, the primary cause, its fix, the evidence and what is unknown."""

    verdict: Verdict
    primary: Primary | None = None
    findings: list[Finding] = []
    unknown: list[UnknownException] = []
    progress: Progress = msgspec.field(default_factory=Progress)
    environment: dict[str, str] = {}
    stats: Stats = msgspec.field(default_factory=Stats)
    notes: list[Text] = []  #: facts for the reader: files that could not be read, a log that just ends
    digest: list[Text] = []  #: how the ranks ended, one line per group, if they ended differently
    ending: Text = ""  #: how the process ended, if known
    new_lines: list[NewLines] = []  #: new before a failed or stalled run's end, most significant first
    schema: int = SCHEMA
    explained: list[Contribution] = []  #: how the findings were derived; in the JSON report on request
    series: list[Series] = []  #: for charts; not in the JSON report. Empty while a run is watched.
    interrupted_by: Interrupter | None = None  #: who stopped it, if it was stopped from outside
    starts: list[Start] = []  #: if a log has several: the newest first
    hosts: list[HostRanks] = []  #: hosts of a run over several, if known

    @property
    def in_trouble(self) -> bool:
        """Whether it no longer trains, for a reason that a person should check."""
        return _in_trouble(self.verdict, self.primary)


class JobSummary(msgspec.Struct):
    """A summary of one of several jobs whose logs were given together."""

    name: str  #: the scheduler's number, the run's or the job's name; ``other`` for files of no known job
    verdict: Verdict
    badge: Text  #: the verdict in words
    primary: str | None  #: the rule of its primary cause
    confidence: float | None  #: confidence in that cause
    title: Text  #: subject of the verdict
    last_step: int | None
    total_steps: int | None
    finished: bool
    last_time: str | None  #: ISO 8601: when it last wrote, by its log, else by its files
    files: list[str]
    reported: bool = False  #: whether this is the report of this job
    interrupted_by: Interrupter | None = None

    @property
    def in_trouble(self) -> bool:
        """Whether the job is in trouble, as for ``Diagnosis``."""
        return _in_trouble(self.verdict, self.primary)


def _in_trouble(verdict: Verdict, primary: Primary | str | None) -> bool:
    """Whether a run is in trouble: one that the system stopped has a cause, one ended on request none."""
    if verdict == "interrupted":
        return primary is not None
    return verdict in ("failed", "stalled", "unknown-failure")
