"""How long a phase of a run is quiet between two signs of progress, and how long is too long: arithmetic.

The rule is three times the 99th percentile. It holds while steps take about the same time. Where they vary by
nature (sequence lengths, samples, shared storage), more than that is normal sooner or later, so the tail
that was seen is carried on to one step in ten million; where that says nothing any more, the wait is that of
a run whose rhythm is not known. While few steps are known, the percentile itself is not, and its upper
confidence limit stands for it. Decisions 14 and 19 say what this costs, and ``make bench-stall`` measures it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from statistics import NormalDist
from typing import Any

from stallwatch_rules.progress.tracker import stall_threshold

ENOUGH = 5  #: observations that make a rhythm
REMEMBERED = 2000  #: and how many are kept: a run whose rhythm changes is learnt anew
KNOWN_TAIL = 600  #: from so many on, the slowest of them tell how slow the rare ones are
RARE = 1e-7  #: a step in so many may be taken for a stall
_SLOW = 0.99  # of the steps are quicker than the one that the plain rule multiplies
_SURE = 0.95  # how sure it is that they are, while few of them are known
_QUICK = 0.1  # of the mean: steps quicker than that count as such
_SKEWED = 0.7  # logarithms that lean so far to the slow side have a Pareto tail
_EVEN = 0.1  # steps whose logarithms vary by no more than this are even
_DOUBT_OF_TAIL = 2.0  # of the standard error of an estimate, added to it
_SHARE_OF_TAIL = 20  # the slowest twentieth
_LEAST_TAIL = 10
_ONCE_MORE = 2.0  # what took long once may take twice as long
_BENEFIT = 2.0  # before KNOWN_TAIL, where steps vary: so many times the plain rule
_SURVIVED = 1.5  # a pause that ended by itself may come again, and be so much longer
_HABIT = 3  # a pause that ended by itself this often is no stall of this run any more
_HABITS_KEPT = 20


class Waits(Sequence[float]):
    """The latest quiet times, the shortest first: each new one moves few others, and none is sorted again."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._ordered: list[float] = []

    def append(self, seconds: float) -> None:
        """Take in one more, and drop the oldest if there are too many."""
        seconds = max(seconds, 1e-3)
        self._latest.append(seconds)
        insort(self._ordered, seconds)
        if len(self._latest) > REMEMBERED:
            del self._ordered[bisect_left(self._ordered, self._latest.popleft())]

    def extend(self, waits: Iterable[float]) -> None:
        """Take in several."""
        for seconds in waits:
            self.append(seconds)

    def __len__(self) -> int:
        return len(self._ordered)

    def __iter__(self) -> Iterator[float]:
        return iter(self._ordered)

    def __getitem__(self, at: Any) -> Any:
        return self._ordered[at]


class Rhythm:
    """The quiet times of one phase: between its own signs of life, and before another phase began."""

    def __init__(self) -> None:
        self.within, self.ends = Waits(), Waits()
        self._paused: list[float] = []  # stalls that ended by themselves
        self._since_pause = 0
        self._habits: deque[float] = deque(maxlen=_HABITS_KEPT)

    def learn(self, seconds: float, *, over: bool) -> None:
        """It was quiet for so long, then went on; or, if it is `over`, another phase began."""
        (self.ends if over else self.within).append(seconds)
        self._since_pause += 1
        if self._since_pause > REMEMBERED:
            self._paused.clear()

    def paused(self, seconds: float) -> None:
        """A stall ended by itself: no rhythm, unless it is the run's habit, but it may come again."""
        self._since_pause = 0
        self._paused.append(seconds)
        if len(self._paused) >= _HABIT:
            self._habits.extend(self._paused)
            self._paused.clear()

    @property
    def longest(self) -> float:
        """The longest time that this phase was quiet and no stall."""
        return max((waits[-1] for waits in (self.within, self.ends) if waits), default=0.0)

    @property
    def longest_pause(self) -> float:
        """The longest of the stalls that ended by themselves and are no habit yet."""
        return max(self._paused, default=0.0)

    def survived(self, most: float) -> float:
        """How long a pause like those that ended by themselves may last, but not more than `most`."""
        return min(most, _SURVIVED * self.longest_pause)

    def threshold(self, *, floor: float, start: float, factor: float, known: bool, steps: bool) -> float:
        """Seconds of quiet that are too many. Until the rhythm is `known` they are `start` at least.

        `steps` says that the phase consists of them: it ends for many reasons, and how long it was quiet
        before each is no sample of one thing.
        """
        learnt = max(
            too_long(self.within, cap=start, factor=factor, floor=floor),
            too_long(self.ends, cap=0.0 if steps else start, factor=factor, floor=floor),
            factor * max(self._habits, default=0.0),
        )
        return max(learnt, floor if known else start)


def too_long(waits: Sequence[float], *, cap: float, factor: float, floor: float) -> float:
    """How long is too long after these; what is only concluded from their spread is `cap` at most.

    From few waits no more than twice the plain rule is concluded, by a 99th percentile that is not too low: a
    guess must hide no hang for half an hour.
    """
    if not waits:
        return 0.0
    waits = sorted(waits)  # which costs little if they are in order
    longest = waits[-1]
    if len(waits) < ENOUGH:
        return factor * longest
    plain = stall_threshold(waits, floor=0.0, start=0.0, factor=factor)
    if len(waits) >= KNOWN_TAIL:
        varied = rare(waits)
    else:
        varied = _BENEFIT * factor * slow_at_most(waits)
        if varied > floor:  # else the steps are so fast that the floor is patience enough
            varied = max(varied, _BENEFIT * floor)
    return max(plain, _ONCE_MORE * longest, min(cap, varied))


def slow_at_most(waits: Sequence[float]) -> float:
    """The 99th percentile of what these few are a sample of, at most (95 % sure); 0 where they are even.

    That of 20 steps is the slowest of them, and one further step in 21 is slower than that. So it is
    concluded from all of them, as if their logarithms were normal: the usual approximation of a one-sided
    tolerance limit (G. J. Hahn, W. Q. Meeker, Statistical Intervals, 1991). Where the logarithms lean to the
    slow side, the tail is a power: Hill's estimator of the slower half (B. M. Hill, A Simple General Approach
    to Inference About the Tail of a Distribution, Annals of Statistics 3, 1975).
    """
    ordered = sorted(waits)
    if _even(ordered, both_ends=True):
        return 0.0
    # How quick the quickest are says nothing of the slowest: a data loader hands out at once what is ready.
    least = _QUICK * sum(ordered) / len(ordered)
    logs = [math.log(max(wait, least)) for wait in ordered]
    count, mean = len(logs), sum(logs) / len(logs)
    spread = math.sqrt(sum((log - mean) ** 2 for log in logs) / (count - 1))
    usual, doubt = NormalDist().inv_cdf(_SLOW), NormalDist().inv_cdf(_SURE)
    limit = mean + spread * (usual + doubt * math.sqrt((1 + usual**2 / 2) / count))
    if sum((log - mean) ** 3 for log in logs) > _SKEWED * count * spread**3:
        half = count // 2
        edge = logs[-half - 1]
        index = sum(log - edge for log in logs[-half:]) / half * (1 + doubt / math.sqrt(half))
        limit = max(limit, edge + index * math.log(0.5 / (1 - _SLOW)))
    return max(ordered[-1], math.exp(min(limit, 700.0)))


def rare(waits: Sequence[float]) -> float:
    """How long a rare one may take, by the slowest of these many; the slowest itself where they are even."""
    ordered = sorted(waits)
    return ordered[-1] if _even(ordered) else _beyond_tail(ordered)


def _even(ordered: Sequence[float], *, both_ends: bool = False) -> bool:
    """Whether the slowest is no further from the middle than among so many steps that hardly vary.

    A few may look so by chance, but seldom at `both_ends`.
    """
    usual = math.exp(_EVEN * NormalDist().inv_cdf(1 - 1 / (len(ordered) + 1)))
    middle = ordered[len(ordered) // 2]
    return ordered[-1] <= middle * usual and (not both_ends or ordered[0] >= middle / usual)


def _beyond_tail(ordered: Sequence[float]) -> float:
    """How long a rare one takes, whatever the distribution: the moment estimator of its tail.

    A. L. M. Dekkers, J. H. J. Einmahl, L. de Haan, A Moment Estimator for the Index of an Extreme-Value
    Distribution, Annals of Statistics 17 (1989). Twice its standard error is added: a stall that is none is
    worse than one that is told late.
    """
    count = max(_LEAST_TAIL, len(ordered) // _SHARE_OF_TAIL)
    edge = ordered[-count - 1]
    above = [math.log(wait / edge) for wait in ordered[-count:]]
    first, second = sum(above) / count, sum(log * log for log in above) / count
    if second <= first * first or first <= 0:  # all alike
        return ordered[-1]
    bounded = 1 - 0.5 / (1 - first * first / second)  # below zero where the tail ends somewhere
    index = max(first + bounded + _DOUBT_OF_TAIL / math.sqrt(count), 1e-6)
    scale = edge * first * (1 - min(0.0, bounded))
    times = count / (len(ordered) * RARE)
    return edge + scale * math.expm1(min(index * math.log(times), 700.0)) / index
