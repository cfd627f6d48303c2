"""Use a sequential test to find steps that became slower than the run's own baseline.

A live run is tested repeatedly, so a test with a fixed limit is likely to report a slowdown by chance. Each
time, the latest steps are compared with all earlier steps by their statistical ranks (the Mann-Whitney test,
which does not assume a distribution of the steps), for windows of many lengths. The limit is set so that
independent step times of any spread raise a false alarm in at most one in a hundred runs of 400 steps. The
limit grows with the length of the run and with the correlation of neighboring steps. `bench/slowdown.py`
measures the rate of false alarms.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from statistics import mean, median

from stallwatch_rules.judgements.facts import Judgement, RunFacts
from stallwatch_rules.messages import message

SLOWER = 1.5  #: a step time above this multiple of the run's own baseline is slow
#: The last third of the slow steps must exceed this multiple of the baseline. Otherwise, the run recovered.
STILL_SLOWER = 1.3
#: Minimum ratio of the present tokens per second to the tokens per second in the first third of the run, if
#: slower steps merely contain more tokens.
AS_QUICK = 0.9
#: Minimum numbers of printed rates: in total, and in each of the two parts (before and during the slow
#: steps).
RATES, FEW_RATES = 15, 3
#: A mean since the start of the run can show slow steps only if they reduce the mean to at most this
#: multiple.
MEAN_FALLS = 0.95
#: Minimum growth of the tokens per step, calculated as if the printed rate were a mean since the start.
MORE_WORK = 1.2
#: Minimum ratio of the present pace to the usual pace for a slowdown that matters in a finished run.
#: Schedules of batch sizes and sequence lengths make the steps of many finished runs two or three times as
#: long.
COLLAPSED = 4.0
LOST = 0.25  #: minimum share of a finished run's time that the slowdown must have cost
RECENT = 6  #: minimum number of steps for a recent pace
BASELINE = 12  #: minimum number of steps for a baseline
LIMIT = 25.0  #: minimum score of a slowdown, in squared standard deviations, in a run of LIMIT_STEPS steps
#: Number of steps to which LIMIT applies. For a different number of steps, 2 ln(steps / LIMIT_STEPS) is
#: added.
LIMIT_STEPS = 400
LOOKED_AT = 1000  #: maximum number of paces that are tested, each of one or more steps
SHIFT = 1.04  #: minimum ratio of the later pace to the earlier pace that shows a straggler
EVEN = 0.02  #: maximum relative variation of steps that count as even
EXCERPT = 30  #: minimum number of steps in a log that is not an excerpt
BLOCKS = 400  #: maximum number of compared paces, each of one or more steps
BEFORE = 200  #: maximum number of compared paces before a shift
WARM_UP = 2  #: number of first steps that can be slow (for compilation, allocation, or CUDA graphs)


def slowdown(paces: Sequence[float], *, alone: bool = True) -> tuple[float, float, int] | None:
    """If steps became slower, return the usual pace, the present pace, and the number of slow steps.

    Return ``None`` if steps did not become slower or became slower only temporarily. `alone` is True if the
    step times are the only evidence. In this case, the change must be abrupt, because steps can become slower
    gradually by design, for example, because sequences become longer.
    """
    steps = len(paces) - WARM_UP
    joined = max(1, -(-steps // LOOKED_AT))  # number of steps that are combined into one pace
    steady = _blocks(paces[WARM_UP:], joined)
    if len(steady) < BASELINE + RECENT:
        return None
    limit = LIMIT + 2 * math.log(steps / LIMIT_STEPS)
    for _, recent in sorted(_slow_windows(steady, limit, alone=alone), reverse=True):
        before, after = steady[:-recent], steady[-recent:]
        usual, now, latest = median(before), median(after), median(after[-max(RECENT - 1, recent // 3) :])
        edge = max(RECENT, min(recent, len(before)) // 4)
        came_at_once = not alone or median(after[:edge]) ** 2 * usual >= median(before[-edge:]) ** 2 * now
        if now > SLOWER * usual and latest > STILL_SLOWER * usual and came_at_once:
            return usual, now, recent * joined
    return None


def stay_slow(paces: Sequence[float]) -> bool:
    """Return whether steps are still slower than before, even if they became slower gradually."""
    return slowdown(paces, alone=False) is not None


def _slow_windows(paces: Sequence[float], limit: float, *, alone: bool) -> Iterator[tuple[float, int]]:
    """Yield the score and length of each window of final steps that is slower than chance explains."""
    ranks = _ranks(paces)
    size = len(ranks)
    sums = [0.0, *accumulate(ranks)]
    squares = [0.0, *accumulate(rank * rank for rank in ranks)]
    pairs = [0.0, *accumulate(rank * next_rank for rank, next_rank in pairwise(ranks))]

    def spread(begin: int, end: int) -> tuple[float, float]:
        """Return the sums of squares and of neighbors' products for the ranks' deviations from their mean."""
        count, total = end - begin, sums[end] - sums[begin]
        mean = total / count
        neighbours = 2 * total - ranks[begin] - ranks[end - 1]
        return (
            squares[end] - squares[begin] - count * mean * mean,
            pairs[end - 1] - pairs[begin] - mean * neighbours + (count - 1) * mean * mean,
        )

    # Every window length is tested. If a window does not begin at the rise, the rise itself makes the steps
    # look correlated.
    for recent in range(RECENT, size - BASELINE + 1):
        before = size - recent
        beyond = sums[size] - sums[before] - recent * (size + 1) / 2
        score = beyond * beyond * 12 / (recent * before * (size + 1))
        if alone and beyond > 0 and score > limit:
            (first, alike), (second, also_alike) = spread(0, before), spread(before, size)
            score /= _inflation((alike + also_alike) / max(first + second, 1e-9), size)
        if beyond > 0 and score > limit:
            yield score, recent


def _ranks(paces: Sequence[float]) -> list[float]:
    """Return the rank that each pace has when the paces are sorted. Equal paces share their mean rank."""
    ranks, behind = [0.0] * len(paces), 0
    for _, equal in groupby(sorted(enumerate(paces), key=itemgetter(1)), key=itemgetter(1)):
        places = [place for place, _ in equal]
        for place in places:
            ranks[place] = behind + (len(places) + 1) / 2
        behind += len(places)
    return ranks


def _inflation(correlation: float, size: int) -> float:
    """Return the factor by which a score must be divided if successive steps are correlated."""
    if correlation < 2 / math.sqrt(size):
        return 1.0
    # If there are few steps, the correlation is underestimated.
    correlation = min(correlation + 2 * (1 + 3 * correlation) / size, 0.98)
    return (1 + correlation) / (1 - correlation)


def as_quick(rates: Sequence[float]) -> bool:
    """Return whether the last steps process as many tokens per second as the first third of the steps.

    In this case, slower steps merely contain more tokens, such as longer answers in reinforcement learning.
    """
    recent, baseline = rates[-max(5, len(rates) // 10) :], rates[: max(10, len(rates) // 3)]
    return len(rates) >= RATES and median(recent) >= AS_QUICK * median(baseline)


def have_more_work(rates: Sequence[float], paces: Sequence[float], steps: int, *, stride: int) -> bool:
    """Return whether slower steps contain more tokens, according to the rates that a program prints.

    Because of attention, the time of a step can grow with the square of the sequence length. Therefore, the
    number of tokens per step must have grown at least by the square root of the slowdown.

    A rate can also be a mean since the start, which falls slowly. Therefore, the rate must also exceed the
    mean that would follow from the same number of tokens in each step. `steps` is the total number of
    steps, and `stride` is the number of steps in each pace.
    """
    slowed = slowdown(paces)
    if slowed is None or not steps:
        return False
    usual, now, count = slowed
    slow = min(count * stride, steps)
    before, ratio = steps - slow, now / usual
    since = slow * mean(paces[-count:]) / usual  # duration of the slow steps, in multiples of the usual pace
    least = len(rates) * before // steps
    if len(rates) < RATES or least < FEW_RATES or len(rates) - least < FEW_RATES:
        return False
    if steps > MEAN_FALLS * (before + since):
        return False
    base = median(rates[:least])
    if not base > 0:
        return False
    of_step = ratio * median(rates[least:]) / base
    as_mean = (rates[-1] / base * (before + since) - before) / slow
    return of_step >= math.sqrt(ratio) and as_mean >= MORE_WORK


def slowed_from(paces: Sequence[float], usual: float, now: float) -> int:
    """Return the first index from which all paces are clearly above the former pace `usual`.

    The median of three paces counts, because a single step can be fast and some clocks count whole seconds.
    """
    limit = usual + (now - usual) / 3
    start = len(paces)
    while start >= 3 and median(paces[start - 3 : start]) > limit:
        start -= 1
    while start > 0 and paces[start - 1] > limit:
        start -= 1
    return min(start, len(paces) - 1)


def steady_shift(paces: Sequence[float], *, excerpt: bool = False) -> tuple[float, float, int] | None:
    """Return the paces before and after a slight slowdown of even steps, and the number of slow steps.

    In synchronous training, all steps are as even as the steps of the slowest rank. If steps varied by two
    percent, a permanent rise of five percent means that one GPU is slower. Return ``None`` if the steps are
    uneven or did not become slower. `excerpt` is True if the log begins in mid-run, where a few steps are
    sufficient evidence.
    """
    joined = max(1, -(-len(paces) // BLOCKS))  # number of steps that are combined into one pace
    paces = _blocks(paces, joined)
    few = len(paces) < EXCERPT
    if len(paces) < 5 or (few and not excerpt):
        return None
    least = 2 if few else max(10, len(paces) // 10)
    lowest = [*accumulate(reversed(paces), min)]  # lowest[n] is the minimum of the last n + 1 paces
    ordered = sorted(paces[:2])  # the sorted paces before the shift
    for count in range(len(paces) - 3, least - 1, -1):  # the earliest shift that explains all paces after it
        shift = len(paces) - count
        insort(ordered, paces[shift - 1])
        if shift > BEFORE:
            ordered.remove(paces[shift - 1 - BEFORE])
        edge = len(ordered) // 20 if len(ordered) >= EXCERPT else 0
        low, high, after = ordered[edge], ordered[-1 - edge], lowest[count - 1]
        if after < high + (high - low):
            continue
        usual, now = median(ordered), median(paces[shift:])
        if usual <= 0 or high - low > EVEN * usual or not SHIFT * usual <= now < SLOWER * usual:
            continue
        if after > (1 + EVEN) * usual:
            return usual, now, count * joined
    return None


def _blocks(paces: Sequence[float], joined: int) -> Sequence[float]:
    if joined == 1:
        return paces
    return [median(paces[i : i + joined]) for i in range(0, len(paces), joined)]


def judge_straggler(paces: Sequence[float], facts: RunFacts, *, excerpt: bool = False) -> Judgement | None:
    """Assess very even steps that abruptly and permanently became slower by a few percent."""
    shift = steady_shift(paces, excerpt=excerpt)
    if shift is None:
        return None
    usual, now, count = shift
    note = message(
        "diagnosis.straggler",
        before=f"{usual:.4g} s",
        now=f"{now:.4g} s",
        percent=f"{now / usual - 1:.1%}",
        count=count,
    )
    return Judgement("harmless" if facts.complete else "degrading", note)


def judge_step_time(paces: Sequence[float], facts: RunFacts) -> Judgement | None:
    """Assess steps that became permanently slower by more than half. `paces` are seconds per step.

    A slowdown of a run that has finished matters only if it cost much of the run's time.
    """
    slowed = slowdown(paces)
    if slowed is None:
        return None
    usual, now, count = slowed
    percent = f"{now / usual - 1:.0%}"
    note = message("diagnosis.slower", before=usual, now=now, percent=percent, count=count)
    if facts.complete and not (now >= COLLAPSED * usual and count * (now - usual) >= LOST * sum(paces)):
        return Judgement("harmless", note + message("diagnosis.reached-the-end"))
    return Judgement("degrading", note)


def judge_throughput(rates: Sequence[float], facts: RunFacts) -> Judgement | None:
    """Assess a falling throughput, in tokens per second, in logs that do not contain step times."""
    slowed = slowdown([1 / rate for rate in rates if rate > 0])
    if slowed is None:
        return None
    usual, now, count = slowed
    note = message("diagnosis.slower-rate", before=f"{1 / usual:.4g}", now=f"{1 / now:.4g}", count=count)
    return Judgement("harmless" if facts.complete else "degrading", note)
