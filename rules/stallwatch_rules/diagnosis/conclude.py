"""From what was read of each stream to the diagnosis: harm, causal order, primary, verdict."""

from __future__ import annotations

from collections.abc import Collection

from stallwatch_rules.diagnosis.assessors import assess
from stallwatch_rules.diagnosis.causes import alone, causal_order, passed_over, primary
from stallwatch_rules.diagnosis.exceptions import INTERRUPTED, Exceptions, read_exceptions
from stallwatch_rules.diagnosis.findings import Found, Streams, collect
from stallwatch_rules.diagnosis.helpers import leave_out_helpers
from stallwatch_rules.diagnosis.inferred import infer, inferred_from, titled_as_guess
from stallwatch_rules.diagnosis.missing import all_flights, point_to_missing
from stallwatch_rules.diagnosis.notes import notes_of
from stallwatch_rules.diagnosis.particulars import with_particulars
from stallwatch_rules.diagnosis.restarts import restarts_note, restarts_of
from stallwatch_rules.diagnosis.saidby import leave_out_others
from stallwatch_rules.diagnosis.servers import is_vllm_server
from stallwatch_rules.diagnosis.signals import rank_of_end
from stallwatch_rules.diagnosis.silentexit import ended_silently
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.diagnosis.stood import show_apart, told_end
from stallwatch_rules.diagnosis.verdict import Question, parted, stands, verdict_of
from stallwatch_rules.endings import Left
from stallwatch_rules.failures.environment import agreed
from stallwatch_rules.failures.flight import reporting
from stallwatch_rules.judgements.facts import RunFacts
from stallwatch_rules.judgements.recovery import RECOVERED_BUT_DIED
from stallwatch_rules.messages import Message, bilingual, message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.fixes import fixes_for, why_of
from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.progress.rhythm import RunClock, read_clock
from stallwatch_rules.progress.timeline import StepClock, Timeline, leading
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Contribution, Diagnosis, Line, Primary
from stallwatch_rules.text.digest import fold_ranks, rank_digest
from stallwatch_rules.text.redact import redact
from stallwatch_rules.text.reported import iso, shown


def conclude(
    streams: Streams,
    tracker: ProgressTracker,
    catalogue: Catalogue,
    conditional: Collection[str],
    question: Question,
) -> Diagnosis:
    """The diagnosis of these streams."""
    lead = leading({key: stream.timelines for key, stream in streams.items()})
    restarts = restarts_of(streams)
    steps = StepClock(lead, restarts)
    matched = collect(streams, catalogue, conditional, steps)
    leave_out_others(matched, streams)
    leave_out_helpers(matched)
    run, first = _snapshot(matched, streams, tracker, catalogue, question, lead, steps)
    now, explained = assess(run, first)
    found, exceptions, facts = now.found, now.exceptions, now.facts
    candidates = [one.candidate() for one in found]
    beside = bool(exceptions.fatal)
    exceptions.decide(candidates)
    chosen = None if exceptions.are_the_cause else primary(candidates, unknown_beside=beside)
    if beside and (chosen is None or chosen[0].harm != "fatal" or chosen[0].role == "wrapper"):
        guess = infer(exceptions, found, catalogue)
        if guess is not None:
            found.append(guess)
            candidates.append(guess.candidate())
            chosen = alone(candidates[-1])
    verdict = verdict_of(chosen, exceptions, found, streams, tracker, question, facts)
    environment = agreed(stream.versions for stream in streams.values())
    by_rule = {one.rule: one for one in found}
    diagnosis = Diagnosis(
        verdict=verdict, environment=environment, ending=question.ending_text or redact(question.told)
    )
    if chosen is not None and (chosen[0].role == "wrapper" or verdict in ("failed", "stalled", "degraded")):
        one = by_rule[chosen[0].rule]
        if not one.hits and stands(chosen[0]):
            show_apart(one, streams)
        diagnosis.primary = _primary(one, chosen[1], environment, streams, tracker.last_step)
        if question.crash is not None and diagnosis.primary.rank is None:
            diagnosis.primary.rank = question.crash.rank
        if one.role == "symptom" and one.harm == "fatal":
            silent = ended_silently(found, exceptions, streams)
            diagnosis.primary.fixes[:0] = [silent] if silent else []
        diagnosis.primary = point_to_missing(diagnosis.primary, found, streams, tracker)
        diagnosis.primary = with_particulars(diagnosis.primary, found, exceptions, streams)
    for candidate in causal_order(candidates):
        one = by_rule[candidate.rule]
        diagnosis.findings.append(one.record(_title(one.page), tracker.last_step))
    diagnosis.unknown = exceptions.records()
    culprits = _culprits(streams)
    if exceptions.are_the_cause and len(culprits) == 1 and not diagnosis.unknown[0].ranks:
        diagnosis.unknown[0].ranks, diagnosis.unknown[0].first.rank = culprits, culprits[0]
    diagnosis.progress = tracker.summary()
    diagnosis.progress.finished = facts.complete
    if verdict == "stalled" or (chosen is not None and stands(chosen[0])):
        diagnosis.progress.stalled_after_step = tracker.last_step
    for finding in diagnosis.findings:
        if by_rule[finding.rule].tagged("flight-data") and not finding.ranks:
            finding.ranks = sorted(reporting(all_flights(streams)))
    diagnosis.notes = notes_of(
        diagnosis, found, exceptions, streams, tracker, question, run.clock, run.by_hand
    )
    restarted = restarts_note(restarts, found, exceptions)
    diagnosis.notes += [restarted] if restarted else []
    if parted(diagnosis, question, by_hand=run.by_hand):
        diagnosis.verdict = "unknown-failure"
    diagnosis.digest = rank_digest(diagnosis)
    diagnosis.explained = explained
    if diagnosis.primary is not None or exceptions.fatal:
        root = chosen[0] if chosen is not None and diagnosis.primary is not None else None
        choice = Contribution("root-cause", [], passed_over=passed_over(candidates, root))
        diagnosis.explained.append(choice)
    return diagnosis


def _snapshot(
    matched: list[Found],
    streams: Streams,
    tracker: ProgressTracker,
    catalogue: Catalogue,
    question: Question,
    lead: Timeline | None,
    steps: StepClock,
) -> tuple[Snapshot, Assessment]:
    """The facts that assessors judge by, and the assessment before any of them: what matched."""
    died = bool(question.failed) or any(
        one.role == "wrapper" and one.followed < (1 if one.tagged("exit-status") else RECOVERED_BUT_DIED)
        for one in matched
    )
    left, left_line = _left_early(streams, question)
    # That a process ended well is no sign of a run's end where others never did.
    complete = tracker.told_finished if left else tracker.finished
    known = {one.rule: set(one.hits) for one in matched}
    exceptions = read_exceptions(
        streams, known, steps, died=died, complete=complete, last_step=tracker.last_step
    )
    by_hand = _by_hand(matched, exceptions, question)
    clock = read_clock(
        streams, tracker, question.now, question.threshold, by_hand=by_hand, ended=told_end(matched, streams)
    )
    facts = RunFacts(
        advances=lead.advances if lead is not None else 0,
        complete=complete,
        silence=_silence(clock, question),
        threshold=clock.threshold,
        stalled=(question.stalled or clock.silent) and question.failed is not False,
        ended_well=question.failed is False,
        died=died,
        phase=tracker.phase,
        ended=clock.ended,
        last_sign=clock.last_sign,
        elsewhere=question.elsewhere,
    )
    run = Snapshot(streams, tracker, catalogue, question, clock, died, by_hand, left, left_line)
    return run, Assessment(matched, exceptions, facts)


def _silence(clock: RunClock, question: Question) -> float | None:
    """Seconds without a step: of a stall, whoever saw it may know of more than its log."""
    if not question.stalled or question.waited is None:
        return clock.silence
    return max(clock.silence or 0.0, question.waited)


def _left_early(streams: Streams, question: Question) -> tuple[tuple[Left, ...], Line | None]:
    """The ranks that ended by themselves before the others, and the line of a launcher that says so.

    A rank's own word is worth less than a launcher's: it does not know every code that it ends with.
    """
    if question.left:
        summaries = [stream.summary for stream in streams.values()]
        left = (one for one in question.left if not any(each.failed_itself(one.rank) for each in summaries))
        return tuple(left), None
    told = [one for stream in streams.values() for one in stream.summary.left_early]
    return tuple(Left(rank, step) for rank, step, _ in told), told[0][2] if told else None


def _by_hand(found: list[Found], exceptions: Exceptions, question: Question) -> bool:
    """Whether somebody stopped the run."""
    told = question.kind == "interrupted" or exceptions.interrupted
    return told or any(one.rule == INTERRUPTED for one in found)


def _primary(
    one: Found,
    confidence: float,
    environment: dict[str, str],
    streams: Streams,
    last_step: int | None,
) -> Primary:
    first = one.shown_match
    line = first.line if first is not None else one.where
    fixes = fixes_for(one.page, environment)
    culprits = _culprits(streams)
    rank = line.rank if line is not None else None
    if rank is None:
        rank = rank_of_end(one, streams)
    if len(culprits) == 1 and (one.role == "wrapper" or (one.role == "cause" and rank is None)):
        rank = culprits[0]  # what was merged into one text names no ranks; its launcher knows who failed
    served = line is not None and line.rank is None and is_vllm_server(line.source, streams)
    if served:
        rank = None
        fixes.insert(0, message("diagnosis.in-vllm-server"))
    if one.role == "wrapper":
        ranks = f"rank {fold_ranks(culprits)}" if culprits else ""
        unknown = message("diagnosis.other-logs-unknown")
        fixes.insert(0, message("diagnosis.other-logs", ranks=ranks) if ranks else unknown)
    return Primary(
        rule=one.rule,
        title=titled_as_guess(_title(one.page), one, confidence),
        role=one.role,
        harm=one.harm,
        confidence=confidence,
        rank=rank,
        file=line.source if line is not None else "",
        line=line.number if line is not None else 0,
        time=iso(line.time, zoned=line.zoned) if line is not None else None,
        step=None if served else one.step_of(first, last_step) if first is not None else one.step,
        evidence=[*one.evidence()],
        captures={name: shown(value) for name, value in (first.captures if first else {}).items()},
        why=why_of(one.page),
        fixes=fixes,
        inferred=inferred_from(one),
    )


def _culprits(streams: Streams) -> list[int]:
    return sorted({rank for stream in streams.values() for rank in stream.summary.culprits})


def _title(page: RulePage) -> Message:
    return bilingual(page.title, page.title_zh)
