"""Steps that became slower than the run's own baseline."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from stallwatch_rules.judgements.facts import Judgement, RunFacts
from stallwatch_rules.text.digest import short_duration
from stallwatch_rules.text.sentences import say

SLOWER = 1.5  #: a step time above this multiple of the run's own baseline is slow
STILL_SLOWER = 1.3  #: and above this one it still is, if it was slow shortly before
AS_QUICK = 0.9  #: of the tokens a second that the first third of the run had
RECENT = 5  #: the least number of steps that a recent pace is taken from
BASELINE = 10  #: and a baseline
SHIFT = 1.04  #: a rise that a straggler explains …
EVEN = 0.02  #: … in a run whose steps vary by no more than this share
EXCERPT = 30  #: fewer steps are an excerpt
BLOCKS = 400  #: as many paces at most are looked at, each perhaps of several steps
WARM_UP = 2  #: steps at the start that compile, allocate and record


def slowdown(paces: Sequence[float]) -> tuple[float, float, int] | None:
    """Baseline, recent pace and how many recent steps, where the recent ones are slower for good.

    A run that was slow a moment ago and is nearly so now is still slow: else a pace near the limit would be
    news again and again. What it was is read from its own steps, so that the answer has no memory.
    """
    slowed = _slower(paces, SLOWER)
    if slowed is not None:
        return slowed
    still = _slower(paces, STILL_SLOWER)
    if still is None:
        return None
    window = still[2]
    stride = max(1, window // RECENT)
    lately = range(stride, 2 * window + 1, stride)
    return still if any(_slower(paces[:-back], SLOWER) for back in lately) else None


def as_quick(rates: Sequence[float]) -> bool:
    """Whether as many tokens a second are worked off as in the first third of the run: then steps that take
    longer hold more of them, as a reinforcement learner's answers grow."""
    recent, baseline = rates[-max(RECENT, len(rates) // 10) :], rates[: max(BASELINE, len(rates) // 3)]
    return len(rates) >= BASELINE + RECENT and median(recent) >= AS_QUICK * median(baseline)


def slowed_from(paces: Sequence[float], usual: float, now: float) -> int:
    """The first of the paces at the end that are nearer to what the steps take now than to what they took.

    Three are looked at together, as one step in between may be quick and clocks count whole seconds.
    """
    limit = usual + (now - usual) / 3
    start = len(paces)
    while start >= 3 and median(paces[start - 3 : start]) > limit:
        start -= 1
    while start > 0 and paces[start - 1] > limit:
        start -= 1
    return min(start, len(paces) - 1)


def _slower(paces: Sequence[float], factor: float) -> tuple[float, float, int] | None:
    """The same for one moment.

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
    slow = sum(pace > factor * usual for pace in recent)
    if now > factor * usual and now > high and slow >= 0.8 * len(recent):
        return usual, now, len(recent)
    return None


def steady_shift(paces: Sequence[float], *, excerpt: bool = False) -> tuple[float, float, int] | None:
    """The pace before and after, and since how many steps, where very even steps became a little slower.

    Synchronous training is as even as its slowest rank: where steps varied by two percent, five percent more
    that stay are one slower GPU. Runs whose steps vary anyway tell nothing here. ``excerpt``: the steps are
    some that somebody cut out of the middle of a run, so that few of them must do.
    """
    joined = -(-len(paces) // BLOCKS)  # steps that are judged together in a long run
    paces = [median(paces[i : i + joined]) for i in range(0, len(paces), max(joined, 1))]
    few = len(paces) < EXCERPT
    if len(paces) < 5 or (few and not excerpt):
        return None
    least = 2 if few else max(BASELINE, len(paces) // 10)
    for count in range(len(paces) - 3, least - 1, -1):  # the earliest shift that explains all after it
        before, after = list(paces[:-count])[-200:], list(paces[-count:])
        ordered = sorted(before)
        edge = len(ordered) // 20 if len(ordered) >= EXCERPT else 0
        low, high = ordered[edge], ordered[-1 - edge]
        usual, now = median(before), median(after)
        if usual <= 0 or high - low > EVEN * usual or not SHIFT * usual <= now < SLOWER * usual:
            continue
        if min(after) >= high + (high - low) and min(after) > (1 + EVEN) * usual:
            return usual, now, count * joined
    return None


def judge_straggler(paces: Sequence[float], facts: RunFacts, *, excerpt: bool = False) -> Judgement | None:
    """Very even steps that became slower by a few percent at once and stayed so."""
    shift = steady_shift(paces, excerpt=excerpt)
    if shift is None:
        return None
    usual, now, count = shift
    note = say(
        "straggler",
        facts.language,
        before=f"{usual:.4g} s",
        now=f"{now:.4g} s",
        percent=f"{now / usual - 1:.1%}",
        count=count,
    )
    return Judgement("harmless" if facts.complete else "degrading", note)


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
