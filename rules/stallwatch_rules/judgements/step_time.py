"""Steps that became slower than the run's own baseline."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from stallwatch_rules.digest import short_duration
from stallwatch_rules.judgements.facts import Judgement, RunFacts
from stallwatch_rules.sentences import say

SLOWER = 1.5  #: a step time above this multiple of the run's own baseline is slow
RECENT = 5  #: the least number of steps that a recent pace is taken from
BASELINE = 10  #: and a baseline
WARM_UP = 2  #: steps at the start that compile, allocate and record


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
