"""The verdict on a run."""

from __future__ import annotations

from stallwatch_rules.diagnosis.findings import Found, Streams
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.failures.templates import states_error
from stallwatch_rules.judgements.conclusions import STANDSTILLS
from stallwatch_rules.judgements.facts import RunFacts
from stallwatch_rules.records import Diagnosis, Verdict

LAST_LINES = 3  #: of a log in which nothing else is recognised; an error among them is what it is about
WITH_STATUS = "left-with-status"  #: the fact of a rank that ended with an exit status, without a word
AT_EXIT = "aborted-at-exit"  #: the fact of an abort after a run had finished


def stands(chosen: Found) -> bool:
    """Whether a finding is that the run stands, and not that it died."""
    return chosen.rule in STANDSTILLS and WITH_STATUS not in chosen.facts


def verdict_of(chosen: Found | None, run: Snapshot, now: Assessment) -> Verdict:
    """The verdict on a run, of which `chosen` is the primary cause."""
    context, exceptions, tracker = run.context, now.exceptions, run.tracker
    if chosen is not None and chosen.role == "wrapper" and chosen.harm == "fatal":
        return "unknown-failure"  # a launcher says that something failed, and not what
    if chosen is not None and chosen.harm == "fatal":
        standing = stands(chosen) and not now.facts.timed_out
        if context.failed is None and (standing or (context.stalled and not _ended_stall(chosen, now.facts))):
            return "stalled"
        return "failed"
    if chosen is not None and AT_EXIT in chosen.facts:
        return "degraded"  # the run itself had come to its end
    if exceptions.fatal:
        return "unknown-failure"
    if context.stalled and context.failed is None:
        return "stalled"
    if context.failed and context.kind != "interrupted":
        return "unknown-failure"
    if chosen is not None:
        return "degraded"
    recognised = (
        now.found
        or exceptions.any
        or tracker.progressed
        or tracker.last_loss is not None
        or tracker.finished
        or any(one.of_a_run or one.summary.codes or one.sampled for one in run.streams.values())
    )
    if not recognised and context.failed is None and context.now is None and _ends_in_error(run.streams):
        return "unknown-failure"
    return "healthy" if recognised else "no-training-log"


def _ended_stall(chosen: Found, facts: RunFacts) -> bool:
    """Whether the cause showed only after the run had been standing: then it died of it."""
    first = chosen.first
    if first is None or first.line.time is None or facts.last_sign is None or chosen.role != "cause":
        return False
    return first.line.time - facts.last_sign > facts.threshold


def parted(diagnosis: Diagnosis, run: Snapshot) -> bool:
    """Whether ranks stopped in mid-run while the others went on, and nobody says that the run ended well.

    Ranks of one run make the same steps: whatever it is, it is not well.
    """
    known = run.context.failed is not None or run.context.now is not None or run.by_hand
    progress = diagnosis.progress
    return diagnosis.verdict == "healthy" and bool(progress.behind) and not (known or progress.finished)


def _ends_in_error(streams: Streams) -> bool:
    """Whether the last that a stream says is an error by its logger's level."""
    return any(
        entry.last_index >= stream.index - LAST_LINES and states_error(entry.last.text)
        for stream in streams.values()
        for entry in stream.templates.entries.values()
    )
