"""The verdict on a run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stallwatch_rules.diagnosis.causes import Candidate
from stallwatch_rules.diagnosis.exceptions import Exceptions
from stallwatch_rules.diagnosis.findings import Found, Streams
from stallwatch_rules.endings import Crash, Left, MemoryKnown
from stallwatch_rules.failures.templates import states_error
from stallwatch_rules.judgements.conclusions import STANDSTILLS
from stallwatch_rules.judgements.facts import RunFacts
from stallwatch_rules.messages import Text
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Diagnosis, Verdict

LAST_LINES = 3  #: of a log in which nothing else is recognised; an error among them is what it is about
WITH_STATUS = "left-with-status"  #: the fact of a rank that ended with an exit status, without a word
AT_EXIT = "aborted-at-exit"  #: the fact of an abort after a run had finished
ENDING_KINDS = ("finished", "failed", "oom-killed", "killed", "time-limit", "interrupted", "unknown")


class Question(msgspec.Struct, frozen=True):
    """What the asker knows beside the log; see ``RunReading.diagnose``."""

    ending: str = ""  #: "<kind>: <sentence>", either part alone will do; kinds as in ``ENDING_KINDS``
    failed: bool | None = None
    now: float | None = None
    threshold: float | None = None
    stalled: bool = False
    left: tuple[Left, ...] = ()  #: ranks that ended by themselves before the others, by who watched them
    memory: MemoryKnown | None = None  #: of a run that ended: what was seen of its memory
    waited: float | None = None  #: seconds without a step at the end, by who watched it
    elsewhere: bool = False  #: as in ``RunFacts``
    crash: Crash | None = None  #: what failed although the command returned 0
    ended_at: float | None = None  #: when the command ended, by the clock of lines that a watcher stamped
    ending_text: Text = ""  #: the ending for reports

    @property
    def kind(self) -> str:
        """The kind of the ending, or nothing."""
        kind = self.ending.partition(":")[0].strip()
        return kind if kind in ENDING_KINDS else ""

    @property
    def told(self) -> str:
        """The ending for people: its sentence, or its kind where there is none."""
        return (self.ending.partition(":")[2].strip() or self.kind) if self.kind else self.ending


def stands(chosen: Candidate) -> bool:
    """Whether a finding is that the run stands, and not that it died."""
    return chosen.rule in STANDSTILLS and WITH_STATUS not in chosen.facts


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
        standing = stands(chosen[0]) and not facts.timed_out
        if question.failed is None and (
            standing or (question.stalled and not _ended_stall(chosen[0], found, facts))
        ):
            return "stalled"
        return "failed"
    if chosen is not None and AT_EXIT in chosen[0].facts:
        return "degraded"  # the run itself had come to its end
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
    if not recognised and question.failed is None and question.now is None and _ends_in_error(streams):
        return "unknown-failure"
    return "healthy" if recognised else "no-training-log"


def _ended_stall(chosen: Candidate, found: Sequence[Found], facts: RunFacts) -> bool:
    """Whether the cause showed only after the run had been standing: then it died of it."""
    first = next((one.first for one in found if one.rule == chosen.rule), None)
    if first is None or first.line.time is None or facts.last_sign is None or chosen.role != "cause":
        return False
    return first.line.time - facts.last_sign > facts.threshold


def parted(diagnosis: Diagnosis, question: Question, *, by_hand: bool) -> bool:
    """Whether ranks stopped in mid-run while the others went on, and nobody says that the run ended well.

    Ranks of one run make the same steps: whatever it is, it is not well.
    """
    known = question.failed is not None or question.now is not None or by_hand
    return (
        diagnosis.verdict == "healthy"
        and bool(diagnosis.progress.behind)
        and not (known or diagnosis.progress.finished)
    )


def _ends_in_error(streams: Streams) -> bool:
    """Whether the last that a stream says is an error by its logger's level."""
    return any(
        entry.last_index >= stream.index - LAST_LINES and states_error(entry.last.text)
        for stream in streams.values()
        for entry in stream.templates.entries.values()
    )
