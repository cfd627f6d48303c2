"""How long a phase of a run is quiet between two signs of progress, and how long is too long: arithmetic.

The rule is three times the 99th percentile. It holds while steps take about the same time. Where they vary by
nature (sequence lengths, samples, shared storage), more than that is normal sooner or later, so the tail
that was seen is carried on to one step in ten million; where that says nothing any more, the wait is that of
a run whose rhythm is not known. Decision 14 says what this costs, and ``make bench-stall`` measures it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import NormalDist

from stallwatch_rules.progress.tracker import stall_threshold

ENOUGH = 5  #: observations that make a rhythm
REMEMBERED = 2000  #: and how many are kept: a run whose rhythm changes is learnt anew
KNOWN_TAIL = 600  #: from so many on, the slowest of them tell how slow the rare ones are
RARE = 1e-7  #: a step in so many may be taken for a stall
_YOUNG = 1e-4  # while few are known, so many of a run's steps up to then, which is less to conclude from
_SPREADS = 8.0  # before: so many standard deviations of the logarithm
_EVEN = 0.1  # steps whose logarithms vary by no more than this are even
_DOUBT = 0.5  # of the standard error of an estimate, added to it: before KNOWN_TAIL
_DOUBT_OF_TAIL = 2.0  # and from then on
_SHARE_OF_TAIL = 20  # the slowest twentieth
_LEAST_TAIL = 10
_ONCE_MORE = 2.0  # what took long once may take twice as long
_BENEFIT = 2.0  # before KNOWN_TAIL: as much longer than the plain rule as a guess about rare steps may wait
_HABIT = 3  # a pause that ended by itself this often is no stall of this run any more
_HABITS_KEPT = 20


class Rhythm:
    """The quiet times of one phase: between its own signs of life, and before another phase began."""

    def __init__(self) -> None:
        self.within: deque[float] = deque(maxlen=REMEMBERED)
        self.ends: deque[float] = deque(maxlen=REMEMBERED)
        self._paused: list[float] = []  # stalls that ended by themselves
        self._habits: deque[float] = deque(maxlen=_HABITS_KEPT)

    def paused(self, seconds: float) -> None:
        """A stall ended by itself. It must not teach to wait longer, unless it is the run's habit."""
        self._paused.append(seconds)
        if len(self._paused) >= _HABIT:
            self._habits.extend(self._paused)
            self._paused.clear()

    @property
    def longest(self) -> float:
        """The longest time that this phase was quiet and no stall."""
        return max((max(waits, default=0.0) for waits in (self.within, self.ends)), default=0.0)

    @property
    def longest_pause(self) -> float:
        """The longest of the stalls that ended by themselves and are no habit yet."""
        return max(self._paused, default=0.0)

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

    From few waits no more than twice the plain rule is concluded: a guess must hide no hang for half an hour.
    """
    if not waits:
        return 0.0
    longest = max(waits)
    if len(waits) < ENOUGH:
        return factor * longest
    plain = stall_threshold(list(waits), floor=0.0, start=0.0, factor=factor)
    if len(waits) < KNOWN_TAIL:
        cap = min(cap, _BENEFIT * max(plain, floor))
    return max(plain, _ONCE_MORE * longest, min(cap, rare(waits)))


def rare(waits: Sequence[float]) -> float:
    """How long a rare one may take, by the slowest of these; the slowest itself where they are even."""
    ordered = sorted(max(wait, 1e-3) for wait in waits)
    if _even(ordered):
        return ordered[-1]
    if len(ordered) >= KNOWN_TAIL:
        return _beyond_tail(ordered)
    logs = [math.log(wait) for wait in ordered]
    mean = sum(logs) / len(logs)
    spread = math.sqrt(sum((log - mean) ** 2 for log in logs) / len(logs))
    return math.exp(min(max(mean + _SPREADS * spread, _beyond_half(logs)), 700.0))


def _even(ordered: Sequence[float]) -> bool:
    """Whether the slowest is no further from the middle than among so many steps that hardly vary."""
    usual = NormalDist().inv_cdf(1 - 1 / (len(ordered) + 1))
    return ordered[-1] <= ordered[len(ordered) // 2] * math.exp(_EVEN * usual)


def _beyond_half(logs: Sequence[float]) -> float:
    """The logarithm of a rare one, by the slower half of a few: Hill's estimator of a Pareto tail.

    B. M. Hill, A Simple General Approach to Inference About the Tail of a Distribution, Annals of Statistics
    3 (1975).
    """
    count = len(logs) // 2
    edge = logs[-count - 1]
    index = sum(log - edge for log in logs[-count:]) / count * (1 + _DOUBT / math.sqrt(count))
    return edge + index * math.log(0.5 / max(RARE, _YOUNG / len(logs)))


def _beyond_tail(ordered: Sequence[float]) -> float:
    """The same from the slowest ones, whatever their distribution: the moment estimator of its tail.

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
