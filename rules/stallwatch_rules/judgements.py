"""What findings mean for this run, judged by its progress. Pure functions over facts; no log is read here.

The same text can be noise or the end: a trace-cache message is harmless while steps advance, degrading when
steps become slower with it, and fatal when no step follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from stallwatch_rules.digest import short_duration
from stallwatch_rules.records import Harm
from stallwatch_rules.sentences import say
from stallwatch_rules.timeline import Interval

SLOWER = 1.5  #: a step time above this multiple of the run's own baseline is slow
RECENT = 5  #: the least number of steps that a recent pace is taken from
BASELINE = 10  #: and a baseline
WARM_UP = 2  #: steps at the start that compile, allocate and record
RECOVERED = 3  #: so many further steps show that something did not end the run
RECOVERED_BUT_DIED = 10  #: the same where the run is known to have failed: its output may be out of order
CALIBRATION = 20  #: steps at the start in which dynamic loss scaling finds its scale
OVERFLOWS_IN_A_ROW = 4


@dataclass(frozen=True)
class RunFacts:
    """The run as far as judgements need it."""

    advances: int = 0  #: steps seen
    complete: bool = False  #: it reached its last step, or says that it finished
    silence: float | None = None  #: seconds without a step at the end, where times tell
    threshold: float = 1800.0  #: seconds without a step that count as a stall in this run
    stalled: bool = False  #: it stands: told by who watches it live, or by the silence
    timed_out: bool = False  #: its log ends in a timeout of a collective, or an abort, before the last step
    failed_otherwise: bool = False  #: something else is known to have ended it
    died: bool = False  #: its launcher or its exit code says that it failed
    language: str = "en"


@dataclass(frozen=True)
class Judgement:
    """A harm, and the evidence behind it in a sentence."""

    harm: Harm
    note: str


@dataclass(frozen=True)
class Trace:
    """How often one rule fired between the steps."""

    intervals: Sequence[tuple[Interval, int]]  #: each with the rule's matches in it
    tail: int  #: matches after the last step

    @property
    def steps(self) -> int:
        """Steps seen."""
        return sum(interval.span for interval, _ in self.intervals)

    @property
    def first(self) -> int | None:
        """Index of the first interval with a match."""
        return next((i for i, (_, hits) in enumerate(self.intervals) if hits), None)

    @property
    def after_first(self) -> int:
        """Steps that were done after the first match."""
        first = self.first
        return 0 if first is None else sum(interval.span for interval, _ in self.intervals[first:])

    @property
    def after_last(self) -> int:
        """Steps that were done after the last match; the step it came in counts."""
        if self.tail:
            return 0
        count = 0
        for interval, hits in reversed(self.intervals):
            count += interval.span
            if hits:
                return count
        return count

    def rate(self, start: int, end: int) -> float:
        """Matches per step in a part of the intervals."""
        part = self.intervals[start:end]
        steps = sum(interval.span for interval, _ in part)
        return sum(hits for _, hits in part) / steps if steps else 0.0


def judge_trace_cache(trace: Trace, facts: RunFacts) -> Judgement:
    """Harm of ZeRO-3's trace-cache invalidations."""
    language = facts.language
    stands = (facts.stalled or facts.timed_out) and not facts.complete and not facts.failed_otherwise
    if stands:
        if recurs_to_the_end(trace):
            return Judgement("fatal", _standstill(trace, facts))
        if trace.after_first:
            return Judgement("harmless", say("long-before-stall", language, steps=trace.after_last - 1))
        return Judgement("by-progress", say("no-steps", language))
    slowing = slower_with(trace)
    if slowing is not None:
        before, now = slowing
        return Judgement(
            "degrading",
            say("slower-with", language, before=short_duration(before), now=short_duration(now)),
        )
    if trace.after_first >= 2 or (trace.after_first and not trace.tail):
        return Judgement("harmless", _advancing(trace, language))
    if facts.complete and not trace.steps:
        return Judgement("harmless", say("advancing", language, steps=facts.advances))
    return Judgement("by-progress", say("no-steps", language))


def recurs_to_the_end(trace: Trace) -> bool:
    """Whether the matches went on as before until the steps ended."""
    marks = [index for index, (_, hits) in enumerate(trace.intervals) if hits]
    if trace.tail or not marks:
        return bool(trace.tail)
    gaps = [later - earlier for earlier, later in pairwise(marks)]
    usual = median(gaps) if gaps else 1
    return len(trace.intervals) - 1 - marks[-1] <= max(2, 3 * usual)


def slower_with(trace: Trace) -> tuple[float, float] | None:
    """The pace before and now, where steps became slower while the matches became more."""
    paced = [(i, interval.pace) for i, (interval, _) in enumerate(trace.intervals) if interval.pace]
    slowed = slowdown([pace for _, pace in paced])
    if slowed is None:
        return None
    baseline, recent, count = slowed
    start = paced[-count][0]
    if trace.rate(start, len(trace.intervals)) <= max(1.2 * trace.rate(0, start), 0.05):
        return None
    return baseline, recent


def slowdown(paces: Sequence[float]) -> tuple[float, float, int] | None:
    """Baseline, recent pace and how many recent steps, where the recent ones are slower for good.

    The baseline is the first third of the run. A run whose steps vary by nature (rollouts of any length) has
    a wide baseline, so the recent median must also be above nearly all of it.
    """
    steady = list(paces[WARM_UP:])
    recent = steady[-max(RECENT, len(steady) // 10) :]
    baseline = steady[: max(BASELINE, len(steady) // 3)]
    if len(steady) < BASELINE + RECENT or len(baseline) + len(recent) > len(steady):
        return None
    usual, now = median(baseline), median(recent)
    high = sorted(baseline)[int(0.95 * (len(baseline) - 1))]
    slow = sum(pace > SLOWER * usual for pace in recent)
    if now > SLOWER * usual and now > high and slow >= 0.8 * len(recent):
        return usual, now, len(recent)
    return None


def _standstill(trace: Trace, facts: RunFacts) -> str:
    steps = 0 if trace.tail else max(trace.after_last - 1, 0)
    last = say("last-came-before" if steps else "last-came-then", facts.language, steps=steps)
    third = len(trace.intervals) // 3
    before, now = trace.rate(0, third), trace.rate(len(trace.intervals) - third, len(trace.intervals))
    if now > 1.5 * before:
        last += say("came-more-often", facts.language, before=f"{10 * before:.2g}", now=f"{10 * now:.2g}")
    if facts.silence is not None and facts.stalled:
        silence, threshold = short_duration(facts.silence), short_duration(facts.threshold)
        return say("stands", facts.language, silence=silence, threshold=threshold) + last
    return say("stands-by-timeout" if facts.timed_out else "stands-by-watch", facts.language) + last


def _advancing(trace: Trace, language: str) -> str:
    told = say("advancing", language, steps=trace.after_first)
    cost = cost_per_step(trace)
    if cost is None:
        return told
    with_match, without, n_with, n_without = cost
    extra = with_match - without
    key = "cost" if extra > 0.02 * without else "no-cost"
    return told + say(
        key,
        language,
        extra=short_duration(abs(extra)),
        with_match=short_duration(with_match),
        without=short_duration(without),
        n_with=n_with,
        n_without=n_without,
    )


def cost_per_step(trace: Trace) -> tuple[float, float, int, int] | None:
    """Median seconds of a step with a match in it and of one without, and how many there were of each."""
    paced = [(interval.pace, hits) for interval, hits in trace.intervals[1:] if interval.pace]
    with_match = [pace for pace, hits in paced if hits]
    without = [pace for pace, hits in paced if not hits]
    if len(with_match) < 3 or len(without) < 3:
        return None
    return median(with_match), median(without), len(with_match), len(without)


@dataclass(frozen=True)
class ScaleFacts:
    """Dynamic loss scaling as the log tells it."""

    lowest: float | None = None  #: the lowest scale that a step overflowed at
    skipped: float | None = None  #: the trainer's own count of skipped steps
    steps: int | None = None  #: the step that this count was printed at


def judge_overflow(trace: Trace, scale: ScaleFacts, facts: RunFacts) -> Judgement:
    """Harm of fp16 overflows: calibration at the start, or the end of training."""
    language = facts.language
    count = sum(hits for _, hits in trace.intervals) + trace.tail
    good = trace.after_last - 1 if not trace.tail else 0
    if scale.lowest is not None and scale.lowest <= 1 and good < RECOVERED:
        return Judgement("fatal", say("scale-at-minimum", language))
    row = _row_at_end(trace)
    if row >= OVERFLOWS_IN_A_ROW and _begun_at(trace) > CALIBRATION:
        return Judgement("fatal", say("overflow-in-a-row", language, row=row))
    share = count / trace.steps if trace.steps else 0.0
    if scale.skipped is not None and scale.steps:
        share = min(share, scale.skipped / scale.steps) if share else scale.skipped / scale.steps
    if trace.steps > 2 * CALIBRATION and share > 0.5 and good < RECOVERED:
        return Judgement("fatal", say("overflow-mostly", language, share=f"{share:.0%}"))
    if trace.steps > 2 * CALIBRATION and share > 0.1:
        return Judgement("degrading", say("overflow-often", language, share=f"{share:.0%}"))
    if good >= RECOVERED or (scale.steps or 0) > CALIBRATION or facts.complete:
        return Judgement("harmless", say("overflow-rare", language, count=count))
    if _begun_at(trace) <= CALIBRATION and row < CALIBRATION:
        return Judgement("harmless", say("overflow-start", language, count=count))
    return Judgement("by-progress", say("no-steps", language))


def _row_at_end(trace: Trace) -> int:
    """Steps in a row with an overflow, up to the last one."""
    row = 1 if trace.tail else 0
    for interval, hits in reversed(trace.intervals):
        if not hits:
            if row or trace.tail:
                break
            if interval is trace.intervals[-1][0]:
                continue  # the step that is under way
            break
        row += min(interval.span, hits)
    return row


def _begun_at(trace: Trace) -> int:
    """The step at which the overflows up to the end began."""
    numbered = [interval.step for interval, _ in trace.intervals if interval.step is not None]
    last = numbered[-1] if numbered else trace.steps
    return last - _row_at_end(trace)


def judge_silence(facts: RunFacts) -> Judgement | None:
    """A hang without a message: steps, then nothing for longer than the run's own rhythm allows."""
    if facts.complete or not facts.stalled:
        return None
    if facts.silence is None:
        return Judgement("fatal", say("silent-by-watch", facts.language))
    return Judgement(
        "fatal",
        say(
            "silent",
            facts.language,
            silence=short_duration(facts.silence),
            threshold=short_duration(facts.threshold),
        ),
    )


def judge_step_time(paces: Sequence[float], facts: RunFacts) -> Judgement | None:
    """Steps that became slower by more than half and stayed so; ``paces`` are seconds a step."""
    slowed = slowdown(paces)
    if slowed is None:
        return None
    usual, now, count = slowed
    reached = say("reached-the-end", facts.language) if facts.complete else ""
    return Judgement(
        "harmless" if facts.complete else "degrading",
        say(
            "slower",
            facts.language,
            before=short_duration(usual),
            now=short_duration(now),
            percent=f"{now / usual - 1:.0%}",
            count=count,
        )
        + reached,
    )


def judge_recovery(followed: int, still_there: bool, facts: RunFacts) -> Judgement | None:
    """Whether a failure that a line names was not the end: training went on after its last match."""
    if followed < (RECOVERED_BUT_DIED if facts.died else RECOVERED):
        return None
    harm: Harm = "degrading" if still_there else "harmless"
    return Judgement(harm, say("recovered", facts.language, steps=followed))
