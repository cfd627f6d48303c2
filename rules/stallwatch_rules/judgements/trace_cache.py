"""Assess ZeRO-3 messages about an invalidated trace cache, and determine whether they explain a stall."""

from __future__ import annotations

from itertools import accumulate
from statistics import median

from stallwatch_rules.judgements.facts import Judgement, RunFacts, Trace
from stallwatch_rules.judgements.step_time import slowdown
from stallwatch_rules.messages import Message, Text, message

_OFTEN = 0.2  # minimum number of matches per step at which an increase counts
_FEW, _RARE_STEPS = 8, 5.0  # maximum number of rare matches, and minimum number of steps between them


def judge_trace_cache(trace: Trace, facts: RunFacts) -> Judgement:
    """Assess ZeRO-3 messages about an invalidated trace cache, based on the steps around the messages."""
    if facts.is_stalled:
        # Such messages do not make a rank wait. At most, they slowed the run down before the stall.
        if facts.missed:
            return _cost(trace) or Judgement("harmless", message("diagnosis.trace-cache-elsewhere"))
        if recurs_to_the_end(trace):
            if _rare(trace):
                return Judgement("harmless", message("diagnosis.rare-before-stall"))
            return Judgement("fatal", _standstill(trace, facts))
        if trace.after_first:
            return Judgement("harmless", message("diagnosis.long-before-stall", steps=trace.after_last - 1))
        return Judgement("by-progress", message("diagnosis.no-steps"))
    if (cost := _cost(trace)) is not None:
        return cost
    if trace.after_first >= 2 or (trace.after_first and not trace.tail):
        return Judgement("harmless", _advancing(trace))
    if facts.complete and not trace.steps:
        return Judgement("harmless", message("diagnosis.advancing", steps=facts.advances))
    return Judgement("by-progress", message("diagnosis.no-steps"))


def _cost(trace: Trace) -> Judgement | None:
    """Assess steps that became slower as the messages became more frequent."""
    slowing = slowdown_with_matches(trace)
    if slowing is None:
        return None
    before, now = slowing
    return Judgement("degrading", message("diagnosis.slower-with", before=before, now=now))


def recurs_to_the_end(trace: Trace) -> bool:
    """Return whether matches occurred at their usual intervals until the last step.

    The result depends only on the first match, the last match, and the number of matches, because the lines
    of most matches might have been counted without being read.
    """
    steps = list(accumulate(interval.span for interval, _ in trace.intervals))
    marks = [done for done, (_, hits) in zip(steps, trace.intervals, strict=True) if hits]
    if trace.tail or not marks:
        return bool(trace.tail)
    usual = (marks[-1] - marks[0]) / max(1, trace.count - 1)
    return steps[-1] - marks[-1] <= max(2, 3 * usual)


def became_more_frequent(trace: Trace) -> bool:
    """Return whether the matches became clearly more frequent toward the last steps."""
    before, now = _first_and_last(trace)
    return now > 1.5 * before and now >= _OFTEN


def _rare(trace: Trace) -> bool:
    """Return whether the messages are rare and far apart, and steps followed the last message."""
    if trace.tail or trace.count > _FEW or became_more_frequent(trace):
        return False
    steps = trace.after_first or trace.steps
    return trace.count == 1 or (steps >= trace.count and steps / (trace.count - 1) >= _RARE_STEPS)


def _first_and_last(trace: Trace) -> tuple[float, float]:
    """Return the matches per step in the first and the last third of the steps."""
    third = len(trace.intervals) // 3
    return trace.rate(0, third), trace.rate(len(trace.intervals) - third, len(trace.intervals))


def slowdown_with_matches(trace: Trace) -> tuple[float, float] | None:
    """If steps became slower while matches became more frequent, return the former and the present pace."""
    paced = [(i, interval.pace) for i, (interval, _) in enumerate(trace.intervals) if interval.pace]
    slowed = slowdown([pace for _, pace in paced], alone=False)
    if slowed is None:
        return None
    baseline, recent, count = slowed
    start = paced[-count][0]
    if trace.rate(start, len(trace.intervals)) <= max(1.2 * trace.rate(0, start), 0.05):
        return None
    return baseline, recent


def _standstill(trace: Trace, facts: RunFacts) -> Message:
    last: Text = message("diagnosis.last-came-then") if trace.tail or trace.after_last <= 1 else ""
    if became_more_frequent(trace):
        before, now = _first_and_last(trace)
        last += message("diagnosis.came-more-often", before=f"{10 * before:.2g}", now=f"{10 * now:.2g}")
    if facts.silence is not None and facts.stalled:
        return message("diagnosis.stands", **facts.lengths) + last
    return message("diagnosis.stands-by-timeout" if facts.timed_out else "diagnosis.stands-by-watch") + last


def _advancing(trace: Trace) -> Message:
    text = message("diagnosis.advancing", steps=trace.after_first)
    cost = cost_per_step(trace)
    if cost is None:
        return text
    with_match, without, n_with, n_without = cost
    extra = with_match - without
    key = "diagnosis.cost" if extra > 0.02 * without else "diagnosis.no-cost"
    numbers = {"with_match": with_match, "without": without, "n_with": n_with, "n_without": n_without}
    return text + message(key, extra=abs(extra), **numbers)


def cost_per_step(trace: Trace) -> tuple[float, float, int, int] | None:
    """Return the median step times in seconds with and without a match, and the numbers of such steps."""
    paced = [(interval.pace, hits) for interval, hits in trace.intervals[1:] if interval.pace]
    with_match = [pace for pace, hits in paced if hits]
    without = [pace for pace, hits in paced if not hits]
    if len(with_match) < 3 or len(without) < 3:
        return None
    return median(with_match), median(without), len(with_match), len(without)
