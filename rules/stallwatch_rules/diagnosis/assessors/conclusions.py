"""What no single line shows: concluded from the run's facts, each by its own judgement."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from stallwatch_rules.diagnosis.exceptions import Exceptions, named
from stallwatch_rules.diagnosis.findings import NOT_A_NUMBER, OVERFLOW, TRACE_CACHE, Found, Streams
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.endings import Left
from stallwatch_rules.failures.flight import Flight, different_gathers, first_work, mismatched
from stallwatch_rules.judgements.conclusions import (
    DIVERGENCE,
    ENDED_BY_SIGNAL,
    EVALUATION_HANG,
    FROZEN,
    LEFT_EARLY,
    MISMATCH,
    MOE_HANG,
    NO_GRADIENT,
    PEER_TO_PEER,
    SILENT_HANG,
    SPIKE,
    STEP_TIME,
    STRAGGLER,
    concluded,
)
from stallwatch_rules.judgements.early_exit import judge_left, shown_as, went_on_without, with_steps
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
from stallwatch_rules.judgements.silence import beside_silence, judge_silence
from stallwatch_rules.judgements.standstill import judge_evaluation, judge_moe, judge_peer_to_peer
from stallwatch_rules.judgements.step_time import (
    as_quick,
    judge_step_time,
    judge_straggler,
    slowdown,
    slowed_from,
)
from stallwatch_rules.messages import message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.progress.curve import Point, leading_curve
from stallwatch_rules.progress.rhythm import RunClock, begins_in_mid_run
from stallwatch_rules.progress.timeline import leading
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Line
from stallwatch_rules.stream import SOURCE


class Run(msgspec.Struct, frozen=True):
    """What conclusions are drawn from."""

    found: list[Found]  #: the rules that fired; conclusions are added to it
    streams: Streams
    catalogue: Catalogue
    tracker: ProgressTracker
    clock: RunClock
    facts: RunFacts
    exceptions: Exceptions
    live: bool  #: somebody watches it: what was read is no excerpt
    left: Sequence[Left] = ()  #: ranks that ended by themselves, without an error, before the others
    left_line: Line | None = None  #: where the log says so
    ends: Collection[str] = ()  #: rules of how it was ended after it had been seen to stand

    @property
    def leavers(self) -> list[Left]:
        """The ranks that left and are missed, each with the last step that is known of it."""
        return with_steps(went_on_without(self.left, self.facts) or self.left, self.tracker.steps)

    @property
    def flights(self) -> dict[tuple[str, int], Flight]:
        """NCCL's counters of all streams together."""
        return {
            key: flight for stream in self.streams.values() for key, flight in stream.flight.ranks.items()
        }

    def has(self, rule: str) -> bool:
        """Whether the rule fired, or was concluded, and does harm."""
        return any(one.rule == rule and one.harm != "harmless" for one in self.found)

    def mentions(self, rule: str) -> bool:
        """Whether the words that the rule's page requires stand in the log."""
        return any(rule in stream.contexts for stream in self.streams.values())


def conclusions(run: Snapshot, now: Assessment) -> None:
    """Add what no line says: a silent hang, steps that became slower, a loss that ran away.

    Example: no step for 7 hours in a run of 12 s a step: silent-hang-no-error.
    """
    question = run.question
    if question.stalled and question.kind != "oom-killed":
        now.ends |= ENDED_BY_SIGNAL
    live = question.now is not None
    conclude_rules(
        Run(
            now.found,
            run.streams,
            run.catalogue,
            run.tracker,
            run.clock,
            now.facts,
            now.exceptions,
            live,
            run.left,
            run.left_line,
            now.ends,
        )
    )


def conclude_rules(run: Run) -> None:
    """Add what the run's facts say."""
    for conclusions in (_standstills, _mismatches, _slow_steps, _losses):
        for rule, judgement, where in conclusions(run):
            page = run.catalogue.pages.get(rule)
            if page is None or any(one.rule == rule for one in run.found):
                continue
            one = concluded(page, judgement)
            one.where, one.step = where or run.clock.last_advance, run.tracker.last_step
            if rule == STEP_TIME:
                _place_slowdown(one, run)
            if rule == MISMATCH:  # the log says it
                one.judged = False
                one.proof = [line.text for line in _of_ranks(run)][1:]
            if rule == LEFT_EARLY:  # it was seen
                one.judged = False
                one.facts.add("left-early")
                one.step = min((each.step for each in run.leavers if each.step is not None), default=None)
            run.found.append(one)
    hang = run.catalogue.pages.get(SILENT_HANG)
    if hang is None or not hang.judged or run.exceptions.fatal:
        return
    # Of a run that was seen to stand, it is no news that somebody ended it.
    if any(one.harm == "fatal" and one.role != "wrapper" and one.rule not in run.ends for one in run.found):
        return
    silence = judge_silence(run.facts)
    if silence is not None:
        one = concluded(hang, silence)
        one.where, one.step = run.clock.last_advance, run.tracker.last_step
        beside = run.exceptions.shortly_before(run.clock.last_sign)
        if beside is not None and run.facts.silence is not None and not run.facts.ended:
            one.note = beside_silence(run.facts, named(beside))
        run.found.append(one)


def _place_slowdown(one: Found, run: Run) -> None:
    """Point to where the steps became slower, and show the last of them."""
    lead = leading({key: stream.timelines for key, stream in run.streams.items()})
    slowed = slowdown(run.tracker.step_seconds())
    last = run.clock.last_advance
    paced = [each for each in lead.intervals if each.pace is not None] if lead is not None else []
    if lead is None or slowed is None or last is None or not paced:
        return
    began = paced[slowed_from([each.pace or 0.0 for each in paced], slowed[0], slowed[1])]
    if began.step is None or not began.number:
        return
    one.proof = [last.text]
    one.where = Line("", lead.source, began.number, last.rank, began.time, zoned=last.zoned)
    one.step = began.step
    one.note += message("diagnosis.slower-since", step=began.step)


Conclusion = tuple[str, Judgement, Line | None]


def _standstills(run: Run) -> Iterator[Conclusion]:
    leavers = run.leavers
    left = judge_left(leavers, run.facts)
    if left is not None:
        yield LEFT_EARLY, left, shown_as(leavers, run.left_line, SOURCE, run.facts)
        return
    if run.exceptions.fatal and not run.facts.timed_out:
        return
    named, differ = run.mentions(MOE_HANG), different_gathers(run.flights)
    moe = judge_moe(
        run.facts,
        experts=named or differ,
        witness=any(one.rule == TRACE_CACHE for one in run.found) or (named and differ),
    )
    if moe is not None:
        yield MOE_HANG, moe, None
        return
    direct = judge_peer_to_peer(
        run.facts, direct=run.mentions(PEER_TO_PEER), first_work=first_work(run.flights)
    )
    if direct is not None:
        yield PEER_TO_PEER, direct, None
        return
    if not run.has(TRACE_CACHE):
        evaluation = judge_evaluation(run.facts)
        if evaluation is not None:
            yield EVALUATION_HANG, evaluation, None


def _mismatches(run: Run) -> Iterator[Conclusion]:
    """Ranks that waited in one collective by its number, and in different ones by what they called."""
    if not run.facts.timed_out or run.facts.failed_otherwise or run.has(MOE_HANG) or run.has(LEFT_EARLY):
        return
    odd = mismatched(run.flights)
    if odd is not None:
        note = message("diagnosis.flight-differs", shown=f"{odd.own()}; {odd.others()}")
        yield MISMATCH, Judgement("fatal", note), next(iter(_of_ranks(run)), None)


def _of_ranks(run: Run) -> list[Line]:
    """The line by which each of the ranks that wait in different collectives says so."""
    odd = mismatched(run.flights)
    lines: dict[str, Line] = {}
    for _, stream in sorted(run.streams.items(), key=lambda item: (item[0][1] or 0, item[0][0])):
        for rule in sorted(run.catalogue.tagged("flight-data")):
            hits = stream.hits.get(rule)
            for works in odd.works if odd is not None and hits is not None else ():
                if hits is not None and f"SeqNum={works[0]}, OpType={works[1]}," in hits.first.line.text:
                    lines.setdefault(works[1], hits.first.line)
    return list(lines.values())


def _slow_steps(run: Run) -> Iterator[Conclusion]:
    paces = run.tracker.step_seconds()
    slow = judge_step_time(paces, run.facts)
    if slow is not None:
        lead = leading({key: stream.timelines for key, stream in run.streams.items()})
        rates = [each.rate for each in lead.intervals if each.rate is not None] if lead is not None else []
        if not as_quick(rates):
            yield STEP_TIME, slow, None
        return
    excerpt = not run.live and begins_in_mid_run(run.tracker)
    straggler = judge_straggler(paces, run.facts, excerpt=excerpt)
    if straggler is not None:
        yield STRAGGLER, straggler, None


def _skipped(run: Run, points: Sequence[Point]) -> Judgement | None:
    """What the count of the stream that is furthest says."""
    counts = [(one.skipped_first, one.skipped_last) for one in run.streams.values()]
    first, last = max(counts, key=lambda count: count[1][1] if count[1] is not None else -1)
    losses = [point.loss for point in finite_losses(points) if point.loss is not None]
    return judge_skipped(first, last, losses, run.facts)


def _losses(run: Run) -> Iterator[Conclusion]:
    lead = leading_curve((key, stream.curves) for key, stream in run.streams.items())
    if lead is None:
        return
    curve, place = lead
    stream = list(run.streams.values())[place]
    points = curve.points
    nan = any(run.has(rule) for rule in NOT_A_NUMBER)
    overflowed = stream.lowest_scale is not None
    zeros = judge_zero_gradients(points, exact=curve.exact, rewarded=curve.rewarded, overflowed=overflowed)
    if zeros is not None:
        yield NO_GRADIENT, zeros, None
        return
    scales = [point.loss_scale for point in points]
    falling = judge_falling_scale(scales, run.facts, excerpt=not run.live and is_excerpt(points))
    falling = falling or _skipped(run, points)
    if falling is not None:
        yield OVERFLOW, falling, None
    latest = last_run(points)
    divergence = judge_divergence(latest, nan_follows=nan, rewarded=curve.rewarded)
    if divergence is not None:
        yield DIVERGENCE, divergence, None
        return
    if nan:
        return
    spike = judge_spike(latest)
    if spike is not None:
        yield SPIKE, spike, None
    frozen = judge_frozen(
        points,
        stream.unlogged,
        run.facts,
        bar=curve.series.startswith("bar"),
        rewarded=curve.rewarded,
        zero_is_odd=curve.exact and not curve.rewarded,
        overflowed=overflowed,
    )
    if frozen is not None:
        yield FROZEN, frozen, None
