"""From the facts of a run, infer findings that no single log line shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from stallwatch_rules.diagnosis.exceptions import named
from stallwatch_rules.diagnosis.exits import SIGKILL, SIGTERM
from stallwatch_rules.diagnosis.findings import OVERFLOW, TRACE_CACHE, RuleFinding, concluded
from stallwatch_rules.diagnosis.snapshot import Assessment, Change, Snapshot, StallEnds
from stallwatch_rules.failures.flight import (
    first_timed_out_collective,
    mismatched,
    wait_in_unequal_gathers,
    watchdog_positions,
)
from stallwatch_rules.judgements.conclusions import (
    EVALUATION_HANG,
    LEFT_EARLY,
    MISMATCH,
    MOE_HANG,
    PEER_TO_PEER,
    SILENT_HANG,
    STANDSTILLS,
    STEP_TIME,
    STRAGGLER,
)
from stallwatch_rules.judgements.facts import Judgement, RunFacts
from stallwatch_rules.judgements.loss import (
    finite_losses,
    is_excerpt,
    judge_divergence,
    judge_frozen,
    judge_spike,
    judge_zero_gradients,
    last_run,
)
from stallwatch_rules.judgements.loss_scale import judge_falling_scale, judge_skipped
from stallwatch_rules.judgements.quality import OF_EVALUATIONS, OF_TRACKS, judge_quality
from stallwatch_rules.judgements.standstill import (
    judge_evaluation,
    judge_left,
    judge_moe,
    judge_peer_to_peer,
    judge_silence,
    note_on_silence,
    ranks_run_continued_without,
    with_steps,
)
from stallwatch_rules.judgements.step_time import (
    as_quick,
    have_more_work,
    judge_step_time,
    judge_straggler,
    judge_throughput,
    slowdown,
    slowed_from,
)
from stallwatch_rules.locale import render
from stallwatch_rules.messages import message
from stallwatch_rules.progress.curve import Point, Reading, leading_curve, leading_track
from stallwatch_rules.progress.rhythm import begins_in_mid_run
from stallwatch_rules.progress.timeline import Interval, Timeline, longest_timeline
from stallwatch_rules.records import Line
from stallwatch_rules.stream import SOURCE

NEARLY_DONE = 0.9  #: share of the total steps after which constant metrics are normal

Conclusion = tuple[str, Judgement, dict[str, Any]]  #: rule, judgment, and other fields of an inferred finding


def conclusions(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """Add findings that no line shows, such as a silent hang, slower steps, or a diverging loss.

    Example: a run that takes 12 s per step and has shown no step for 7 hours gets the finding
    ``silent-hang-no-error``.
    """
    catalogue = run.catalogue
    if run.context.stalled and run.context.kind != "oom-killed":
        ends = StallEnds(now.ends | catalogue.tagged(SIGTERM) | catalogue.tagged(SIGKILL))
        yield ends
        now = now.after([ends])
    pages = catalogue.pages
    known: dict[str, Any] = {"where": run.clock.last_advance, "step": run.tracker.last_step}
    for conclude in (_standstills, _mismatches, _slow_steps, _losses, _quality, _silence):
        found = [
            concluded(pages[rule], judgement, **(known | fields))
            for rule, judgement, fields in conclude(run, now)
            if rule in pages and now.get(rule) is None
        ]
        yield from found
        now = now.after(found)


def _standstills(run: Snapshot, now: Assessment) -> Iterator[Conclusion]:
    facts = now.facts
    left = with_steps(ranks_run_continued_without(run.left, facts) or run.left, run.tracker.steps)
    gone = judge_left(left, facts)
    if gone is not None:  # the agent or a launcher reported that the ranks ended
        where = run.left_line or Line(render(gone.note), SOURCE, 0, left[0].rank)
        step = min((process.step for process in left if process.step is not None), default=None)
        fields = {"seen": True, "facts": frozenset(["left-early"]), "where": where, "step": step}
        yield LEFT_EARLY, gone, fields
        return
    if now.exceptions.fatal and not facts.timed_out:
        return
    flights = watchdog_positions(run.streams)
    named, differ = _mentioned(MOE_HANG, run), wait_in_unequal_gathers(flights)
    witness = now.get(TRACE_CACHE) is not None or (named and differ)
    direct = _mentioned(PEER_TO_PEER, run)
    for rule, judgement in (
        (MOE_HANG, judge_moe(facts, experts=named or differ, witness=witness)),
        (
            PEER_TO_PEER,
            judge_peer_to_peer(facts, direct=direct, first_work=first_timed_out_collective(flights)),
        ),
        (EVALUATION_HANG, None if now.harmful(TRACE_CACHE) else judge_evaluation(facts)),
    ):
        if judgement is not None:
            yield rule, judgement, {}
            return


def _mentioned(rule: str, run: Snapshot) -> bool:
    """Return whether the log contains the words that the page of this rule requires."""
    return any(rule in stream.contexts for stream in run.streams.values())


def _mismatches(run: Snapshot, now: Assessment) -> Iterator[Conclusion]:
    """Infer that ranks waited in collectives with the same sequence number but different operations."""
    if not now.facts.timed_out or now.facts.failed_otherwise:
        return
    odd = mismatched(watchdog_positions(run.streams))
    if odd is None or now.harmful(MOE_HANG) or now.harmful(LEFT_EARLY):
        return
    lines: dict[str, Line] = {}  # operation → a line about the operation from a rank that ran it
    for _, stream in sorted(run.streams.items(), key=lambda item: (item[0][1] or 0, item[0][0])):
        for rule in sorted(run.catalogue.tagged("flight-data") & stream.hits.keys()):
            line = stream.hits[rule].first.line
            for number, operation in odd.works:
                if f"SeqNum={number}, OpType={operation}," in line.text:
                    lines.setdefault(operation, line)
    note = message("diagnosis.flight-differs", shown=odd.all())
    first, *others = lines.values() if lines else [run.clock.last_advance]
    fields = {"seen": True, "where": first, "proof": tuple(line.text for line in others if line is not None)}
    yield MISMATCH, Judgement("fatal", note), fields


def _slow_steps(run: Snapshot, now: Assessment) -> Iterator[Conclusion]:
    if run.by_hand and not any(stream.curves.main for stream in run.streams.values()):
        return  # a progress bar that shows no loss can count anything, such as the last tasks of a pool
    paces = run.tracker.step_seconds()
    slow = judge_step_time(paces, now.facts)
    if slow is not None or not paces:
        lead = longest_timeline({key: stream.timelines for key, stream in run.streams.items()})
        rates = [each.rate for each in lead.intervals if each.rate is not None] if lead is not None else []
        if slow is not None:
            if as_quick(rates) or _more_work(paces, run):
                slow = Judgement("harmless", slow.note + message("diagnosis.slower-more-tokens"))
            judgement, known = _since("slower-since", slow, lead, _slowed(lead, run), run)
            if "where" in known and len({rank for rank in run.last_steps if rank is not None}) > 1:
                known["where"] = replace(known["where"], rank=None)  # all ranks wait for the slowest rank
            yield STEP_TIME, judgement, known
        decay = judge_throughput(rates, now.facts) if not paces else None
        if decay is not None:
            yield STEP_TIME, decay, {}
        return
    excerpt = run.context.now is None and begins_in_mid_run(run.tracker)
    straggler = judge_straggler(paces, now.facts, excerpt=excerpt)
    if straggler is not None:
        yield STRAGGLER, straggler, {}


def _more_work(paces: Sequence[float], run: Snapshot) -> bool:
    """Return whether the slower steps contain more tokens, judging by the rates that the ranks print.

    The timeline with the most steps can be from the probe, which does not report rates.
    """
    timelines = (line for stream in run.streams.values() for line in stream.timelines.by_series.values())
    rates = ([each.printed_rate for each in line.intervals] for line in timelines)
    printed = max(([rate for rate in some if rate is not None] for some in rates), key=len, default=[])
    steps = max((stream.timelines.advances for stream in run.streams.values()), default=0)
    stride = max(1, min(run.tracker.stride, steps // len(paces)))  # number of steps in each pace
    return have_more_work(printed, paces, steps, stride=stride)


def _slowed(lead: Timeline | None, run: Snapshot) -> Interval | None:
    """Return the first slow step, or ``None`` if it is unknown."""
    slowed = slowdown(run.tracker.step_seconds())
    paced = [each for each in lead.intervals if each.pace is not None] if lead is not None else []
    if slowed is None or not paced:
        return None
    return paced[slowed_from([each.pace or 0.0 for each in paced], slowed[0], slowed[1])]


def _since(
    key: str, judgement: Judgement, lead: Timeline | None, began: Interval | None, run: Snapshot
) -> tuple[Judgement, dict[str, Any]]:
    """Return two values: an assessment, and fields with the step and line where the problem began."""
    last = run.clock.last_advance
    if lead is None or began is None or last is None or began.step is None or not began.number:
        return judgement, {}
    where = Line("", lead.source, began.number, last.rank, began.time, zoned=last.zoned)
    judgement = replace(judgement, note=judgement.note + message(f"diagnosis.{key}", step=began.step))
    return judgement, {"proof": (last.text,), "where": where, "step": began.step}


def _losses(run: Snapshot, now: Assessment) -> Iterator[Conclusion]:
    lead = leading_curve((key, stream.curves) for key, stream in run.streams.items())
    if lead is None:
        return
    curve, place = lead
    rule = run.catalogue.rule_tagged
    stream = list(run.streams.values())[place]
    points = curve.points
    nan = any(finding.harm != "harmless" for finding in now.found if _not_a_number(finding))
    overflowed = stream.lowest_scale is not None
    zeros = judge_zero_gradients(points, exact=curve.exact, rewarded=curve.rewarded, overflowed=overflowed)
    if zeros is not None:
        yield rule("no-gradient"), zeros, {}
        return
    scales = [point.loss_scale for point in points]
    falling = judge_falling_scale(scales, now.facts, excerpt=run.context.now is None and is_excerpt(points))
    falling = falling or _skipped(run, points, now.facts)
    if falling is not None:
        yield rule(OVERFLOW), falling, {}
    latest = last_run(points)
    divergence = judge_divergence(latest, nan_follows=nan, rewarded=curve.rewarded)
    if divergence is not None:
        steps = stream.timelines.main
        began = steps.interval_at(divergence.mark) if steps is not None and divergence.mark else None
        yield rule("loss-diverged"), *_since("risen-since", divergence, steps, began, run)
        return
    if nan:
        return
    spike = judge_spike(latest)
    if spike is not None:
        yield rule("loss-spiked"), spike, {}
    frozen = judge_frozen(
        points,
        stream.unlogged,
        now.facts,
        bar=curve.series.startswith("bar"),
        rewarded=curve.rewarded,
        zero_is_odd=curve.exact and not curve.rewarded,
        overflowed=overflowed,
    )
    if frozen is not None:
        yield rule("loss-same"), frozen, {}


def _quality(run: Snapshot, now: Assessment) -> Iterator[Conclusion]:
    """Infer findings from metrics other than the loss, for runs that print no error message."""
    streams = [(key, stream.curves) for key, stream in run.streams.items()]
    metrics = {name: [reading.value for reading in leading_track(name, streams)] for name in OF_TRACKS}
    metrics |= {name: _results(leading_track(name, streams)) for name in OF_EVALUATIONS}
    lead = leading_curve(streams)
    if lead is not None:
        points = lead[0].points
        metrics["loss"] = [point.loss for point in points if point.loss is not None]
        metrics["grad_norm"] = [point.grad_norm for point in points if point.grad_norm is not None]
        # If the numbers in a log are rounded, a small learning rate can appear as 0.
        if lead[0].exact and now.tagged("no-gradient") is None:
            rates = [point.learning_rate for point in points if point.learning_rate is not None]
            metrics["learning_rate"] = rates
    last, total = run.tracker.last_step, run.tracker.total_steps
    ending = last is not None and total is not None and last > NEARLY_DONE * total
    for tag, judgement in judge_quality(metrics, now.facts, ending=ending):
        yield run.catalogue.rule_tagged(tag), judgement, {}


def _results(readings: Sequence[Reading]) -> list[float]:
    """Return the results of a run's evaluations. Each result appears once, even if the log repeats it.

    A result counts as new if its step differs from the step of the previous result, or if training
    continued between the two results.
    """
    return [
        reading.value
        for before, reading in zip((None, *readings), readings, strict=False)
        if before is None
        or reading.mark > before.mark
        or (reading.step is not None and reading.step != before.step)
    ]


def _not_a_number(finding: RuleFinding) -> bool:
    return finding.tagged("nan-loss") or finding.tagged("nan-gradient")


def _skipped(run: Snapshot, points: Sequence[Point], facts: RunFacts) -> Judgement | None:
    """Assess the number of skipped steps in the stream that reached the highest step."""
    counts = [(stream.skipped_first, stream.skipped_last) for stream in run.streams.values()]
    first, last = max(counts, key=lambda count: count[1][1] if count[1] is not None else -1)
    losses = [point.loss for point in finite_losses(points) if point.loss is not None]
    return judge_skipped(first, last, losses, facts)


def _silence(run: Snapshot, now: Assessment) -> Iterator[Conclusion]:
    """Infer a silent hang, unless a fatal finding shows a failure other than the end of a stalled run."""
    page = run.catalogue.pages.get(SILENT_HANG)
    if page is None or not page.judged or now.exceptions.fatal:
        return
    if any(finding.role != "wrapper" and finding.rule not in now.ends for finding in now.fatal):
        return
    silence = judge_silence(now.facts)
    if silence is not None:
        beside = now.exceptions.shortly_before(run.clock.last_sign)
        if beside is not None and now.facts.silence is not None and not now.facts.ended:
            silence = replace(silence, note=note_on_silence(now.facts, named(beside)))
        yield SILENT_HANG, silence, {}


def explanations(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """Record which findings are explained by a stall, a slowdown, or a failed process of this run.

    Example: a silent hang explains the message ``DUE TO TIME LIMIT`` at the end of the log.
    """
    by_itself = any(stream.summary.failed_by_itself for stream in run.streams.values())
    symptoms = tuple(finding.rule for finding in now.found if finding.role in ("symptom", "wrapper"))
    for finding in now.found:
        explains = finding.explains
        # The finding is a stall that was inferred from the run's progress.
        if not finding.hits and finding.harm == "fatal" and finding.rule in STANDSTILLS:
            others = (rule for rule in symptoms if rule != finding.rule)
            explains = (*others, STEP_TIME, TRACE_CACHE, *now.ends)
        if finding.tagged("loss-diverged"):
            explains = tuple(other.rule for other in now.found if _not_a_number(other))
        if finding.role == "wrapper" and by_itself:
            explains = tuple(run.catalogue.tagged(SIGTERM))
        if finding.rule == TRACE_CACHE and finding.judged and finding.harm in ("fatal", "degrading"):
            explains = (*(symptoms if finding.harm == "fatal" else ()), STEP_TIME)
        if explains != finding.explains:
            yield replace(finding, explains=explains)
