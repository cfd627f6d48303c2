"""Derive the diagnosis of a run from the streams that were read."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from statistics import median

from msgspec.structs import replace

from stallwatch_rules.diagnosis.assessors import assess
from stallwatch_rules.diagnosis.awaited import is_only_waiting, waited_for
from stallwatch_rules.diagnosis.causes import causal_order, confidence_among, passed_over, primary
from stallwatch_rules.diagnosis.clocks import clocks_ahead, events_of, on_one_clock, without_outdated_times
from stallwatch_rules.diagnosis.exceptions import Exceptions, read_exceptions
from stallwatch_rules.diagnosis.findings import RuleFinding, Streams, collect, steps_after
from stallwatch_rules.diagnosis.hosts import RunHosts, hosts_of
from stallwatch_rules.diagnosis.inferred import infer_finding
from stallwatch_rules.diagnosis.notes import notes_of
from stallwatch_rules.diagnosis.outside_end import end_from_outside, with_differing_line
from stallwatch_rules.diagnosis.particulars import (
    culprits,
    environment_of,
    is_named,
    primary_of,
    title_of,
)
from stallwatch_rules.diagnosis.restarts import restarts_of
from stallwatch_rules.diagnosis.runs import runs_note
from stallwatch_rules.diagnosis.snapshot import Assessment, RunContext, Snapshot
from stallwatch_rules.diagnosis.uneven import ranks_held_up, with_place
from stallwatch_rules.diagnosis.unrelated import without_foreign_exceptions, without_helpers
from stallwatch_rules.diagnosis.verdict import means_stall, stopped_while_others_continued, verdict_of
from stallwatch_rules.endings import Crash, ExitedRank
from stallwatch_rules.failures.flight import reporting, watchdog_positions
from stallwatch_rules.judgements.facts import RECOVERED_BUT_DIED, RunFacts
from stallwatch_rules.judgements.standstill import stopped_late
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.progress.rhythm import RunClock, read_clock
from stallwatch_rules.progress.timeline import StepClock, longest_timeline
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Contribution, Diagnosis, Line
from stallwatch_rules.stream import StreamReading
from stallwatch_rules.text.digest import rank_digest


def conclude(
    streams: Streams,
    tracker: ProgressTracker,
    catalogue: Catalogue,
    conditional: Collection[str],
    context: RunContext,
) -> Diagnosis:
    """Return the diagnosis of a run from its streams."""
    hosts = hosts_of(streams, context.sources, context.ranks_on)
    if hosts:
        hosts = replace(hosts, ahead=clocks_ahead(events_of(streams, hosts.of_streams)))
        streams = on_one_clock(streams, hosts.of_streams, hosts.ahead)
    streams = without_outdated_times(streams)
    run, first = _snapshot(streams, tracker, catalogue, conditional, context, hosts)
    now, explained = assess(run, first)
    unknown_cause = now.exceptions.are_the_cause(now.found)
    chosen, confidence = _root_cause(run, now, unknown_cause)
    now = now.after([chosen] if chosen is not None else [])
    verdict, interrupted_by = verdict_of(chosen, run, now)
    held_up, other_runs = None, runs_note(streams)
    named = chosen if chosen is not None and (chosen.role == "wrapper" or verdict in _NAMED) else None
    if named is not None and not named.hits and means_stall(named):
        if named.where is run.clock.last_advance:
            held_up = None if other_runs else ranks_held_up(streams, run.last_steps)
            named = with_place(named, held_up, streams)
        else:
            named = with_differing_line(named, streams)
        now = now.after([named])
    diagnosis = Diagnosis(
        verdict=verdict,
        primary=primary_of(named, confidence, run, now, held_up) if named is not None else None,
        findings=[
            finding.record(title_of(finding.page), tracker.last_step, context.alike)
            for finding in causal_order(now.found)
        ],
        unknown=now.exceptions.records(),
        progress=tracker.summary(),
        environment=environment_of(run),
        ending=context.ending.detail or context.kind if context.ending is not None else "",
        interrupted_by=interrupted_by,
    )
    failed = culprits(streams)
    if unknown_cause and len(failed) == 1 and not diagnosis.unknown[0].ranks:
        diagnosis.unknown[0].ranks, diagnosis.unknown[0].first.rank = failed, failed[0]
    diagnosis.progress.finished = now.facts.complete
    if verdict == "stalled" or (chosen is not None and means_stall(chosen)):
        diagnosis.progress.stalled_after_step = tracker.last_step
    flight_data = catalogue.tagged("flight-data")
    for finding in diagnosis.findings:
        if finding.rule in flight_data and not finding.ranks:
            finding.ranks = sorted(reporting(watchdog_positions(streams)))
    diagnosis.notes = notes_of(diagnosis, run, now, other_runs, held_up)
    if stopped_while_others_continued(diagnosis, run):
        diagnosis.verdict, diagnosis.interrupted_by = "unknown-failure", None
    odd = _place_on_hosts(diagnosis, run, now) if hosts else []
    diagnosis.digest = rank_digest(diagnosis, odd)
    diagnosis.explained = explained
    if named is not None or now.exceptions.fatal:
        choice = Contribution("root-cause", [], passed_over=passed_over(now.found, named))
        diagnosis.explained.append(choice)
    return diagnosis


def _place_on_hosts(diagnosis: Diagnosis, run: Snapshot, now: Assessment) -> list[int]:
    """Add the hosts to the diagnosis and return the ranks for which the other ranks waited."""
    primary, missing, odd = diagnosis.primary, list[int](), list[int]()
    if primary is not None:
        primary.host = run.hosts.host(primary.rank) or primary.host
        if is_only_waiting(primary, run.catalogue):
            missing = waited_for(primary.rule, run, now)
            singled = primary.rank is not None and is_named(primary)
            odd = missing or ([primary.rank] if singled and primary.rank is not None else [])
    diagnosis.hosts = run.hosts.records(missing)
    return odd


_NAMED = ("failed", "interrupted", "stalled", "degraded")  #: verdicts for which a cause is named


def _root_cause(run: Snapshot, now: Assessment, unknown_cause: bool) -> tuple[RuleFinding | None, float]:
    """Return the root cause and its confidence. The cause can be inferred from an unknown exception."""
    beside = bool(now.exceptions.own_failures)
    chosen = None if unknown_cause else primary(now.found, unknown_beside=beside)
    if beside and (chosen is None or chosen[0].harm != "fatal" or chosen[0].role == "wrapper"):
        guess = infer_finding(now.exceptions, now.found, run.catalogue)
        if guess is not None:
            return guess, confidence_among(guess)
    return chosen if chosen is not None else (None, 0.0)


def _snapshot(
    streams: Streams,
    tracker: ProgressTracker,
    catalogue: Catalogue,
    conditional: Collection[str],
    context: RunContext,
    hosts: RunHosts,
) -> tuple[Snapshot, Assessment]:
    """Return two values: the facts of a run, and the assessment that the first assessor receives."""
    lead = longest_timeline({key: stream.timelines for key, stream in streams.items()})
    restarts = restarts_of(streams)
    steps = StepClock(lead, restarts)
    matched = without_foreign_exceptions(collect(streams, catalogue, conditional, steps), streams)
    matched = without_helpers(matched)
    died = bool(context.failed) or any(
        finding.role == "wrapper"
        and finding.followed < (1 if finding.tagged("exit-status") else RECOVERED_BUT_DIED)
        for finding in matched
    )
    died = died or any(_launcher_killed(stream, steps) for stream in streams.values())
    left, left_line = _left_early(streams, context)
    # If other processes never ended, the successful end of one process does not show that the run ended.
    complete = tracker.shows_finish if left else tracker.finished
    read = partial(read_exceptions, streams, catalogue=catalogue, clock=steps, tracker=tracker, died=died)
    exceptions = read(matched, complete=complete, stalled=context.stalled)
    if context.crash is not None:
        every = round(median(each.span for each in lead.intervals)) if lead and lead.intervals else 1
        matched = [
            replace(finding, followed=0) if _is_of_crash(finding, context.crash, streams, every) else finding
            for finding in matched
        ]
        exceptions = exceptions.with_crash(context.crash, every)
    by_hand = _by_hand(matched, exceptions, context)
    complete = complete and (tracker.surely_finished or not by_hand)
    clock = read_clock(
        streams,
        tracker,
        context.now,
        context.threshold,
        by_hand=by_hand,
        stopped=exceptions.interrupted_at,
        ended=end_from_outside(matched, streams),
    )
    if context.stalled and context.stopped:
        clock = replace(clock, ended=True)
    silence = _silence(clock, context)
    still_runs = by_hand and tracker.only_reached_total and stopped_late(silence, tracker.durations())
    if still_runs or (context.stalled and context.failed is not False):
        complete = False  # the processes had reached the last step but had not ended
    # While a run is watched, the agent decides whether it is stalled, because the agent might be waiting for
    # stacks or might know that ranks are computing.
    stalled = context.stalled or (clock.silent and (context.now is None or context.ending is not None))
    if stalled and not context.stalled and context.crash is None:  # the log alone shows the stall
        exceptions = read(matched, complete=complete, stalled=True)
    facts = RunFacts(
        advances=lead.advances if lead is not None else 0,
        complete=complete,
        silence=silence,
        threshold=clock.threshold,
        stalled=stalled and context.failed is not False,
        ended_well=context.failed is False,
        died=died,
        phase=tracker.phase,
        ended=clock.ended,
        aborted=context.ending is not None and context.ending.aborted,
        last_sign=clock.last_sign,
        missed=bool(context.elsewhere),
    )
    run = Snapshot(
        streams, tracker, catalogue, context, clock, died, by_hand, left, left_line, restarts, hosts
    )
    return run, Assessment(tuple(matched), exceptions, facts)


def _launcher_killed(stream: StreamReading, clock: StepClock) -> bool:
    """Return whether a launcher ended its processes after a failure, and few steps followed."""
    if stream.summary.kills is None:
        return False
    line, advances = stream.summary.kills
    return steps_after(stream, line, advances, clock) < RECOVERED_BUT_DIED


def _is_of_crash(finding: RuleFinding, crash: Crash, streams: Streams, every: int) -> bool:
    """Return whether a finding concerns the process that crashed. Other processes might have continued."""
    return any(
        crash.is_at(hits.last.step, streams[key].when(hits.last.line), every)
        for key, hits in finding.hits.items()
    )


def _silence(clock: RunClock, context: RunContext) -> float | None:
    """Return the seconds since the last step, according to the log or the agent, whichever is longer."""
    if not context.stalled or context.waited is None:
        return clock.silence
    return max(clock.silence or 0.0, context.waited)


def _left_early(streams: Streams, context: RunContext) -> tuple[tuple[ExitedRank, ...], Line | None]:
    """Return the ranks that ended without an error before the other ranks.

    The second result is the launcher's line about such a rank, if the log contains this line. A rank's own
    report is less reliable than a launcher's report, because a rank does not know every exit code with
    which its process can end.
    """
    if context.left:
        summaries = [stream.summary for stream in streams.values()]
        left = (
            process
            for process in context.left
            if not any(each.failed_itself(process.rank) for each in summaries)
        )
        return tuple(left), None
    early = [departure for stream in streams.values() for departure in stream.summary.left_early]
    return tuple(ExitedRank(rank, step) for rank, step, _ in early), early[0][2] if early else None


def _by_hand(found: list[RuleFinding], exceptions: Exceptions, context: RunContext) -> bool:
    """Return whether a user stopped the run. A stop that many steps follow belongs to an earlier start."""
    interrupts = [finding for finding in found if finding.tagged("interrupt")]
    last = any(finding.followed < RECOVERED_BUT_DIED for finding in interrupts)
    return context.kind == "interrupted" or (last if interrupts else exceptions.interrupted)
