"""How long a run may be quiet before it is stalled: learnt from its own waits, phase by phase.

Watching live and reading a log afterwards use the same `StallThresholds`: waits go in, seconds come out.

The rule is three times the 99th percentile. It holds while steps take about the same time. Where they vary by
nature (sequence lengths, samples, shared storage), more than that is normal sooner or later, so the tail
that was seen is carried on to one step in ten million; where that says nothing any more, the threshold is
that of a run of which too little is known. While few steps are known, the percentile itself is not, and its
upper confidence limit stands for it. Decisions 14 and 19 say what this costs, `make bench-stall` measures it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

from stallwatch_rules.records import Phase

_LIKE = 0.1  # rounds that differ by no more are alike, and the next pause may come so much early or late
_LEAST = 5  # steps: shorter rounds would make each step one before a pause


class Rounds:
    """Counts signs of training between pauses that a log shows only when they are over: an evaluation's.

    How long the first few of them take says little of the next: the last one of a run may be on all the data.
    If they come after equally many steps, it is known when the next may begin; else nothing is lost.
    """

    def __init__(self) -> None:
        self._signs = 0
        self._ended: deque[int] = deque(maxlen=2)

    def trained(self) -> None:
        """A sign of training."""
        self._signs += 1

    def paused(self, *, announced: bool) -> None:
        """The training paused; what is `announced` is known when it begins, and needs no foresight."""
        if announced:
            self._ended.clear()
        else:
            self._ended.append(self._signs)
        self._signs = 0

    @property
    def due(self) -> bool:
        """Whether the next pause may have begun."""
        if len(self._ended) < 2:
            return False
        least, most = min(self._ended), max(self._ended)
        alike = least >= _LEAST and most <= least * (1 + _LIKE)
        return alike and least * (1 - _LIKE) <= self._signs <= most * (1 + _LIKE)


#: How patient the start is with a phase, in multiples of `Limits.start`. Large models load for an hour,
#: evaluations and saves show no sign of life in most logs, rollouts of 69 minutes are on record, and so are
#: three silent hours from a trainer's last word to the end of its launcher.
PATIENCE: Mapping[Phase, float] = {"init": 2, "eval": 4, "save": 2, "rollout": 4, "idle": 8}
ANNOUNCED: tuple[Phase, ...] = ("eval", "save", "rollout", "weight-sync")  #: phases that steps pause for
ENOUGH = 5  #: waits from which a phase's threshold is learnt
_WARM_UP = 2  # steps after the first one that may still compile, allocate and record
_MOST_STEPS = 4  # waits for several steps may be longer, up to so many times
_UNSEEN_PATIENCE = 4  # with a log's first interval: it may hold a rollout that the log does not mention
_BRIEF = 2.8  # floors, while a log has shown few steps: a stall is reported within 90 s
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


class Limits(NamedTuple):
    """The settings of ``[stall]``."""

    floor: float = 30.0  #: seconds; no threshold is lower
    start: float = 1800.0  #: seconds, while too little is known
    factor: float = 3.0  #: of the 99th percentile


class PhaseWaits:
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

    def threshold(self, *, floor: float, cap: float, factor: float, steps: bool) -> float:
        """Return how many seconds of quiet are too many, 0 before the first wait.

        Those that are only concluded from how much the waits vary are `cap` at most.

        `steps` says that the phase consists of them: it ends for many reasons, and how long it was quiet
        before each is no sample of one thing.
        """
        return max(
            too_long(self.within, cap=cap, factor=factor, floor=floor),
            too_long(self.ends, cap=0.0 if steps else cap, factor=factor, floor=floor),
            factor * max(self._habits, default=0.0),
        )


_DEFAULTS = Limits()


class StallThresholds:
    """Learns from each wait of a run, and knows the threshold of each phase."""

    def __init__(self, limits: Limits = _DEFAULTS) -> None:
        self._limits = limits
        self.log_only = False  #: only a log shows progress, which may be silent about what is done
        self._stride = 1  # steps from one sign of progress to the next: a log may show every tenth
        self._warm_up = _WARM_UP
        self._warmed = 0.0  # the longest of these
        self._trained = 0.0  # seconds from one step to another, of this run, as far as anybody watched
        self._waits: dict[Phase, PhaseWaits] = {}
        self._known: dict[Phase, float] = {}
        self._suspected = limits.floor  # by the steps alone
        self._learning: set[Phase] = set()  # phases whose threshold is not learnt from their waits
        self._usual: dict[Phase, float] = {}  # the threshold of a phase that no pause was survived in
        self._outdated: set[Phase] = {"init", "train"}
        self._rounds = Rounds()

    # ---- what was seen

    def observe(
        self,
        waited: float,
        phase: Phase,
        following: Phase,
        *,
        stalled: bool = False,
        after_evaluation: bool = False,
        learn: bool = True,
    ) -> None:
        """The run was quiet in `phase` for so long, and is in `following` now.

        A wait `after_evaluation` is one for its metrics. What was not the phase's own teaches nothing: it is
        not to `learn` from.
        """
        due = self._rounds.due
        if following == "train":
            self._rounds.trained()
        elif phase == "train" and following in ANNOUNCED:
            self._rounds.paused(announced=waited <= max(self.of("train").within[-1:], default=0.0))
        if self._rounds.due != due:
            self._outdated.add("train")
        if learn and waited > 0:
            if after_evaluation and self.steps_known:  # such as metrics, before the next step
                self.of("eval").learn(waited, over=True)
                self._outdated.add("eval")
            else:
                self._learn(waited, phase, following, stalled=stalled)
        if following not in self._known:
            self._outdated.add(following)

    def step_by(self, steps: int) -> None:
        """So many steps were made from one sign of progress to the next."""
        if steps != self._stride:
            self._stride = steps
            self._outdated.add("train")

    def take_over(self, durations: Mapping[Phase, Sequence[float]]) -> None:
        """Begin with the waits of a run that was up before."""
        for phase, seconds in durations.items():
            waits = self.of(phase)
            (waits.within if phase == "train" else waits.ends).extend(seconds)
            self._outdated.add(phase)
        if durations.get("train"):
            self._warm_up = 0
            self._trained = sum(durations["train"])

    def replay(self, durations: Mapping[Phase, Sequence[float]], stride: int) -> None:
        """Observe the waits of a run that is over: what was longer than its threshold was a stall."""
        for phase, seconds in durations.items():
            self._outdated.add(phase)
            for waited in seconds:
                least = max(self._limits.floor, self.of(phase).longest)  # no threshold is lower
                stalled = waited > least and waited > self.alone[phase]
                self.observe(waited, phase, "train", stalled=stalled)
                self.step_by(stride)

    # ---- what is learnt from it

    def of(self, phase: Phase) -> PhaseWaits:
        """The waits of a phase."""
        return self._waits.setdefault(phase, PhaseWaits())

    @property
    def steps_known(self) -> bool:
        """Whether enough steps were seen to know how long one takes."""
        return len(self.of("train").within) >= ENOUGH

    @property
    def alone(self) -> Mapping[Phase, float]:
        """The threshold of each phase met until now, which holds while nobody can look at the ranks."""
        self._update()
        return self._known

    def at_end(self, phase: Phase) -> float:
        """The threshold of a log that ended in this phase.

        While too little is known, a live watch allows more, as the next line may still come. Here none came.
        """
        self._update()
        return self._threshold(phase, ended=True)

    @property
    def suspected(self) -> float:
        """The threshold of training by its steps alone."""
        self._update()
        return self._suspected

    def learning(self, phase: Phase) -> bool:
        """Whether too little was seen: the threshold is what is allowed until then."""
        return phase in self._learning

    def _update(self) -> None:
        # Put off until someone asks: steps may come by the thousand. They come first: others ask for theirs.
        for phase in sorted(self._outdated, key=lambda phase: phase != "train"):
            self._known[phase] = self._threshold(phase)
            if phase == "train":
                waits, (floor, start, factor) = self.of(phase), self._limits
                learnt = waits.threshold(floor=floor, cap=start, factor=factor, steps=True)
                self._suspected = max(floor, learnt, waits.survived(start))
        self._outdated.clear()

    def _learn(self, waited: float, phase: Phase, following: Phase, *, stalled: bool) -> None:
        waits, steps = self.of(phase), phase == following == "train"
        self._outdated.add(phase)
        if phase == "init":
            self._outdated.add("train")
        if steps and not stalled:
            self._trained += waited
        if steps and self._warm_up and not stalled:
            self._warm_up -= 1
            self._warmed = max(self._warmed, waited)
        elif stalled and not (phase == "train" and following in ANNOUNCED):
            waits.paused(waited)
        elif phase == following and waited > self._usual.get(phase, math.inf):
            waits.paused(waited)  # not reported a second time, but not usual either
        else:  # over: also a silent evaluation that is reported only when it is over
            waits.learn(waited, over=phase != following)

    def _threshold(self, phase: Phase, *, ended: bool = False) -> float:
        waits, (floor, start_seconds, factor) = self.of(phase), self._limits
        start = start_seconds * PATIENCE.get(phase, 1.0)
        if phase == "train":
            start *= min(_MOST_STEPS, self._stride)
            known = len(waits.within) >= ENOUGH
            # The first sign came after as many steps as the next ones will: a log of a line in half an hour.
            usual = max(self.of("init").longest, self._warmed, waits.longest)
            if self.log_only:
                start *= 1 if self._warmed or waits.longest else _UNSEEN_PATIENCE
                usual = max(usual, waits.longest_pause)
        else:
            known = len(waits.ends) >= ENOUGH
            usual = waits.longest
            # It shows signs of life: no need to wait for its end. Loading shows none: what is seen there are
            # launches, by the ranks of several attempts.
            if phase != "init" and len(waits.within) >= ENOUGH:
                start = start_seconds
        brief = self.log_only and phase == "train" and self._trained < floor and not ended
        if brief:
            # Its first evaluation may be what is quiet: nobody knows yet how often this run is, and how long.
            floor *= _BRIEF
        # A log seldom says that an evaluation is over: it may be the steps that are quiet.
        steps = 0.0
        if self.log_only and phase in ANNOUNCED:
            steps = self._threshold("train", ended=True) if ended else self._known.get("train", 0.0)
        learnt = waits.threshold(floor=floor, cap=start, factor=factor, steps=phase == "train")
        allowed = max(start_seconds if ended else start, factor * usual)  # while little is known
        own = max(learnt, floor if known else allowed)
        if self.log_only and phase == "train" and self._rounds.due:
            # It may be in an evaluation, whose waits count then, as if it had said so.
            steps = min(start_seconds, self._threshold("eval"))
        threshold = max(own, steps, waits.survived(start))
        if ended:
            return threshold
        self._usual[phase] = max(own, steps)
        self._learning.discard(phase)
        if threshold == own and (not known or (brief and own == floor)):
            self._learning.add(phase)
        return threshold


def limit_of_steps(durations: Sequence[float], limits: Limits) -> float:
    """Return how long is too long after these steps alone, whatever else the run does."""
    waits, (floor, start, factor) = PhaseWaits(), limits
    waits.within.extend(durations)
    learnt = waits.threshold(floor=floor, cap=start, factor=factor, steps=True)
    return max(learnt, floor if len(durations) >= ENOUGH else start)


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
    plain = factor * waits[math.ceil(_SLOW * len(waits)) - 1]  # the 99th percentile by nearest rank
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
