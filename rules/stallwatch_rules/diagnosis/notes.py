"""What the reader of a diagnosis should know beside its verdict: whom to suspect, what is unsure."""

from __future__ import annotations

from stallwatch_rules.diagnosis.assessors.graceful_shutdown import ASKED
from stallwatch_rules.diagnosis.exceptions import INTERRUPTED, Exceptions
from stallwatch_rules.diagnosis.findings import Found, Streams
from stallwatch_rules.diagnosis.missing import all_flights, did_not_report, waited_in_vain
from stallwatch_rules.diagnosis.runs import runs_note
from stallwatch_rules.diagnosis.silentexit import ended_by_itself, ended_silently
from stallwatch_rules.diagnosis.uneven import uneven_end, went_on_without
from stallwatch_rules.diagnosis.verdict import Question
from stallwatch_rules.failures.flight import flight_note
from stallwatch_rules.judgements.conclusions import STANDSTILLS
from stallwatch_rules.judgements.silence import stopped_late
from stallwatch_rules.messages import Text, message
from stallwatch_rules.progress.rhythm import RunClock
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import IN_TROUBLE, Diagnosis
from stallwatch_rules.text.digest import fold_ranks
from stallwatch_rules.text.reported import shown


def notes_of(
    diagnosis: Diagnosis,
    found: list[Found],
    exceptions: Exceptions,
    streams: Streams,
    tracker: ProgressTracker,
    question: Question,
    clock: RunClock,
    by_hand: bool,
) -> list[Text]:
    """The notes, in the order in which they help; which ranks are behind, the progress is told."""
    notes: list[Text] = []
    flights = all_flights(streams)
    progress = diagnosis.progress
    chosen = diagnosis.primary
    if exceptions.fatal and chosen is not None and not chosen.inferred:
        text = exceptions.records()[0]
        name = f"{text.exception}: {text.message}".removesuffix(": ") or "Traceback"
        notes.append(message("diagnosis.unknown-may-be-cause", exception=shown(name)))
    if chosen is not None and chosen.role == "symptom" and not waited_in_vain(chosen):
        absent = did_not_report(chosen.rule, found, streams)
        if absent:
            notes.append(message("diagnosis.absent-ranks", ranks=f"rank {fold_ranks(absent)}"))
    if chosen is not None and chosen.role == "wrapper" and chosen.harm == "fatal":
        silent = ended_silently(found, exceptions, streams)
        notes += [silent] if silent else []
    other_runs = runs_note(streams)
    notes += [other_runs] if other_runs else []
    explained = chosen is not None and chosen.role == "cause" and chosen.rule not in STANDSTILLS
    if not explained and any(one.tagged("flight-data") and one.harm == "fatal" for one in found):
        counters = flight_note(flights)
        notes += [counters] if counters else []
    uneven = None
    if diagnosis.verdict in IN_TROUBLE and not progress.finished:
        uneven = uneven_end(tracker.steps)
    uneven = uneven or (None if other_runs else went_on_without(streams))
    if uneven is not None:
        progress.behind = sorted(uneven.behind)
        notes.append(uneven.note())
    if diagnosis.verdict == "unknown-failure" and not exceptions.fatal:
        told = question.failed is None and not question.ending and not found  # no more than that line
        notes.append(message("diagnosis.ends-in-error" if told else "diagnosis.no-rule"))
        by_itself = ended_by_itself(exceptions, streams, question) if chosen is None else ""
        notes += [by_itself] if by_itself else []
        if progress.finished:
            notes.append(message("diagnosis.training-was-complete"))
    if by_hand and diagnosis.verdict in ("healthy", "degraded"):
        waited = None if progress.finished else _waited(found, question, clock, tracker)
        late = stopped_late(waited, tracker.durations(), tracker.step_seconds())
        notes.append(late or message("diagnosis.interrupted"))
    elif (asked := next((one.where for one in found if ASKED in one.facts), None)) is not None:
        at = f"{asked.source}:{asked.number}"
        notes.append(message("diagnosis.asked-to-end-line", line=shown(asked.text), at=at))
    elif diagnosis.verdict in ("healthy", "degraded") and _ends_open(diagnosis, question):
        step, total = progress.last_step, progress.total_steps
        known = {"step": step or 0, "total": total} if total else {"step": step or 0}
        notes.append(message("diagnosis.just-ends" if total else "diagnosis.just-ends-somewhere", **known))
        if tracker.phase == "eval":
            notes.append(message("diagnosis.ends-in-evaluation"))
    return notes


def _waited(
    found: list[Found], question: Question, clock: RunClock, tracker: ProgressTracker
) -> float | None:
    """Seconds from the last step until somebody stopped the run: what came then is no wait of the run's."""
    if tracker.phase != "train":
        return None
    if question.waited is not None:
        return question.waited
    if clock.last_sign is None:
        return None
    told = [place.time for one in found if one.rule == INTERRUPTED for place in one.occurrences]
    ends = [time for time in told if time is not None]
    end = min(ends, default=question.ended_at)
    return clock.silence if end is None else end - clock.last_sign


def _ends_open(diagnosis: Diagnosis, question: Question) -> bool:
    """Whether the log of a run that nobody watches shows steps and no end of them."""
    progress = diagnosis.progress
    if question.ending or question.failed is not None or question.now is not None:
        return False
    if progress.last_step is None or progress.finished:
        return False
    return not progress.total_steps or progress.last_step < progress.total_steps
