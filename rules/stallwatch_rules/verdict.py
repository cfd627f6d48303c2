"""The verdict on a run, and what its reader should know beside it."""

from __future__ import annotations

from dataclasses import dataclass

from stallwatch_rules.causes import Candidate
from stallwatch_rules.conclusions import STANDSTILLS
from stallwatch_rules.digest import fold_ranks
from stallwatch_rules.exceptions import Exceptions
from stallwatch_rules.findings import Found, Streams
from stallwatch_rules.judgements.facts import RunFacts
from stallwatch_rules.progress import ProgressTracker
from stallwatch_rules.records import Diagnosis, Verdict
from stallwatch_rules.reported import shown
from stallwatch_rules.sentences import say

ENDING_KINDS = ("finished", "failed", "oom-killed", "killed", "time-limit", "interrupted", "unknown")


@dataclass(frozen=True)
class Question:
    """What the asker knows beside the log; see ``RunReading.diagnose``."""

    ending: str = ""  #: "<kind>: <sentence>", either part alone will do; kinds as in ``ENDING_KINDS``
    failed: bool | None = None
    now: float | None = None
    threshold: float | None = None
    stalled: bool = False
    language: str = "en"

    @property
    def kind(self) -> str:
        """The kind of the ending, or nothing."""
        kind = self.ending.partition(":")[0].strip()
        return kind if kind in ENDING_KINDS else ""

    @property
    def told(self) -> str:
        """The ending for people: its sentence, or its kind where there is none."""
        return (self.ending.partition(":")[2].strip() or self.kind) if self.kind else self.ending


def verdict_of(
    chosen: tuple[Candidate, float] | None,
    exceptions: Exceptions,
    found: list[Found],
    streams: Streams,
    tracker: ProgressTracker,
    question: Question,
    facts: RunFacts,
) -> Verdict:
    if chosen is not None and chosen[0].role == "wrapper" and chosen[0].harm == "fatal":
        return "unknown-failure"  # a launcher says that something failed, and not what
    if chosen is not None and chosen[0].harm == "fatal":
        standing = chosen[0].rule in STANDSTILLS and not facts.timed_out
        if (standing or question.stalled) and question.failed is None:
            return "stalled"
        return "failed"
    if exceptions.fatal:
        return "unknown-failure"
    if question.stalled and question.failed is None:
        return "stalled"
    if question.failed and question.kind != "interrupted":
        return "unknown-failure"
    if chosen is not None:
        return "degraded"
    recognised = (
        found
        or exceptions.any
        or tracker.progressed
        or tracker.last_loss is not None
        or tracker.finished
        or any(stream.of_a_run or stream.summary.codes or stream.sampled for stream in streams.values())
    )
    return "healthy" if recognised else "no-training-log"


def notes_of(
    diagnosis: Diagnosis,
    found: list[Found],
    exceptions: Exceptions,
    streams: Streams,
    question: Question,
    by_hand: bool,
) -> list[str]:
    language = question.language
    notes = []
    progress = diagnosis.progress
    chosen = diagnosis.primary
    if exceptions.fatal and chosen is not None:
        text = exceptions.records()[0]
        name = f"{text.exception}: {text.message}".removesuffix(": ") or "Traceback"
        notes.append(say("unknown-may-be-cause", language, exception=shown(name)))
    if chosen is not None and chosen.role == "symptom":
        reported = {rank for one in found if one.rule == chosen.rule for _, rank in one.hits}
        absent = _absent({rank for rank in reported if rank is not None}, streams)
        if absent:
            notes.append(say("absent-ranks", language, ranks=f"rank {fold_ranks(absent)}"))
    if diagnosis.verdict == "unknown-failure" and not exceptions.fatal:
        notes.append(say("no-rule", language))
        if progress.finished:
            notes.append(say("training-was-complete", language))
    if by_hand and diagnosis.verdict in ("healthy", "degraded"):
        notes.append(say("interrupted", language))
    elif (
        diagnosis.verdict in ("healthy", "degraded")
        and not question.ending
        and question.failed is None
        and question.now is None
        and progress.last_step is not None
        and progress.total_steps
        and progress.last_step < progress.total_steps
        and not progress.finished
    ):
        total = progress.total_steps
        notes.append(say("just-ends", language, step=progress.last_step, total=total))
    return notes


def _absent(reported: set[int], streams: Streams) -> list[int]:
    """The ranks that did not report what all others did, if they are few."""
    known = {rank for _, rank in streams if rank is not None}
    if len(reported) < 2:
        return []
    absent = set(range(max(known) + 1)) - reported
    return sorted(absent) if 0 < len(absent) <= len(reported) / 2 else []
