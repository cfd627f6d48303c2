"""Choose the verdict on a run."""

from __future__ import annotations

from collections.abc import Mapping

from stallwatch_rules.diagnosis.exits import SIGTERM, ended_from_outside
from stallwatch_rules.diagnosis.findings import RuleFinding
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.failures.templates import states_error, states_info
from stallwatch_rules.judgements.conclusions import STANDSTILLS
from stallwatch_rules.judgements.facts import SERVED, RunFacts
from stallwatch_rules.pages.page import Tag
from stallwatch_rules.records import Diagnosis, Interrupter, Verdict
from stallwatch_rules.stream import StreamReading

LAST_LINES = 3  #: number of last lines that are searched for an error if a log contains no recognized text
WITH_STATUS = "left-with-status"  #: fact: a rank ended with an exit status and without a message
AT_EXIT = "aborted-at-exit"  #: fact: the run aborted after it had finished
END_REQUESTED = "asked-to-end"  #: fact and message key: a signal requested the end of the run

#: The actor that stopped a run, by the tag of the rule that shows the stop.
_STOPPED_BY: Mapping[Tag, Interrupter] = {
    "time-limit": "time-limit",
    "preempted": "preempted",
    "cancelled": "cancelled",
}


def means_stall(chosen: RuleFinding) -> bool:
    """Return whether a finding means that the run is stalled, not that the run ended."""
    return chosen.rule in STANDSTILLS and WITH_STATUS not in chosen.facts


def verdict_of(
    chosen: RuleFinding | None, run: Snapshot, now: Assessment
) -> tuple[Verdict, Interrupter | None]:
    """Return two values: the verdict on a run, and who or what stopped the run from outside.

    `chosen` is the primary cause.
    """
    verdict = _trouble(chosen, run, now)
    if verdict == "failed" and chosen is not None:
        by = _stopped_by(chosen, run, now)
        return ("interrupted", by) if by is not None else (verdict, None)
    if verdict is not None:
        return verdict, None
    by = _requested_by(run, now)
    if chosen is not None:
        return "degraded", by
    if not _is_of_training(run, now):
        dead = run.context.failed is None and run.context.now is None
        in_error = dead and any(map(_ends_in_error, run.streams.values()))
        return ("unknown-failure" if in_error else "no-training-log"), None
    if by is not None:
        return "interrupted", by
    return _undisturbed(run, now), None


def _trouble(chosen: RuleFinding | None, run: Snapshot, now: Assessment) -> Verdict | None:
    """Return the verdict on a run that failed or stalled, even if it was stopped.

    For any other run, return ``None``.
    """
    context = run.context
    by_itself = context.failed is not None and not context.stopped  # the run ended on its own
    if chosen is not None and chosen.role == "wrapper" and chosen.harm == "fatal":
        return "unknown-failure"  # a launcher reports a failure without its cause
    if chosen is not None and chosen.harm == "fatal":
        stalled = means_stall(chosen) and not now.facts.timed_out
        if not by_itself and (stalled or (context.stalled and not _ended_stall(chosen, now.facts))):
            return "stalled"
        return "failed"
    if chosen is not None and AT_EXIT in chosen.facts:
        return None  # the run itself had finished
    if now.exceptions.fatal:
        return "unknown-failure"
    if context.stalled and not by_itself:
        return "stalled"
    if context.failed and context.kind != "interrupted":
        return "unknown-failure"
    return None


def _stopped_by(chosen: RuleFinding, run: Snapshot, now: Assessment) -> Interrupter | None:
    """Return who or what stopped a run from outside, or ``None`` if the primary cause does not show this."""
    for tag, by in _STOPPED_BY.items():
        if chosen.tagged(tag):
            return by
    ending = run.context.ending
    command_ended = ending is not None and ending.signal == "SIGTERM" and ending.crash is None
    from_outside = command_ended or ended_from_outside(chosen, now.found)
    return "signal" if chosen.tagged(SIGTERM) and from_outside else None


def _requested_by(run: Snapshot, now: Assessment) -> Interrupter | None:
    """Return who or what asked a run to end, or ``None`` if nothing did."""
    finish = run.tracker.finish
    how = finish.how if finish is not None else ""
    if run.by_hand and (how == "left" or not now.facts.complete):
        # The duration in the log is not evidence, because a program that was stopped can also print it.
        return "user"
    if how not in ("", "left"):
        return None
    return "signal" if any(END_REQUESTED in finding.facts for finding in now.found) else None


def _undisturbed(run: Snapshot, now: Assessment) -> Verdict:
    """Return the verdict on a run that has no problem and was not stopped."""
    context, tracker = run.context, run.tracker
    if now.facts.complete or context.failed is False:
        return "finished"
    serves = any(stream.answers >= SERVED for stream in run.streams.values())
    if not (tracker.trained or tracker.last_loss is not None or serves):
        return "no-evidence"
    # If the agent stopped watching before the run ended, nothing shows whether the run continued.
    watched = (context.now is not None and context.ending is None) or context.watched
    return "healthy" if watched or serves else "unfinished"


def _is_of_training(run: Snapshot, now: Assessment) -> bool:
    """Return whether anything in the log shows that the log is the output of a training run."""
    tracker = run.tracker
    return bool(
        now.found
        or now.exceptions.any
        or tracker.progressed
        or tracker.last_loss is not None
        or tracker.finished
        or any(stream.of_a_run or stream.summary.codes or stream.sampled for stream in run.streams.values())
    )


def _ended_stall(chosen: RuleFinding, facts: RunFacts) -> bool:
    """Return whether the primary cause ended a stall, that is, appeared only after the run had stalled."""
    first = chosen.first
    if first is None or first.line.time is None or facts.last_sign is None or chosen.role != "cause":
        return False
    return first.line.time - facts.last_sign > facts.threshold


def stopped_while_others_continued(diagnosis: Diagnosis, run: Snapshot) -> bool:
    """Return whether some ranks stopped early while others continued and the log shows no normal end.

    Ranks of one run take the same steps, so such a run has a problem, even if the kind of problem is unknown.
    """
    known = run.context.failed is not None or run.context.now is not None or run.by_hand
    fine = not diagnosis.in_trouble and diagnosis.verdict not in ("degraded", "no-training-log")
    return fine and bool(diagnosis.progress.behind) and not (known or diagnosis.progress.finished)


def _ends_in_error(stream: StreamReading) -> bool:
    """Return whether a stream ends with a line that its logger marks as an error."""
    last = [
        entry for entry in stream.templates.entries.values() if entry.last_index >= stream.index - LAST_LINES
    ]
    error = max((entry.last_index for entry in last if states_error(entry.last.text)), default=None)
    # A program that logs the same kind of work before and after an error survived the error.
    return error is not None and not any(
        entry.index < error < entry.last_index and states_info(entry.last.text) for entry in last
    )
