"""Learn the stall threshold of each phase from the previous waits of a run.

A wait is the time between two signs of life. Live watching and the diagnosis of a complete log both use
`StallThresholds`, which derives a threshold in seconds from the waits. If all steps take about the same time,
the threshold is three times the 99th percentile of the waits. If the durations vary (because of sequence
lengths, samples, or shared storage), a longer wait can also occur in a healthy run. Therefore, the tail of
the observed waits is extrapolated to one step in ten million. While few steps are known, an upper confidence
limit of the percentile is used instead. Decisions 14 and 19 describe the cost of this method, and `make
bench-stall` measures it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

from stallwatch_rules.records import Phase

_LIKE = 0.1  # maximum relative difference between the lengths of two similar rounds
_LEAST = 5  # minimum length of a round in steps; in shorter rounds, most steps would be near a pause


class TrainingRounds:
    """A counter of the signs of training progress between pauses. It predicts when the next pause begins.

    If the last two pauses (such as evaluations) each followed about the same number of signs of progress, the
    next pause is expected after the same number. Otherwise, nothing is predicted. The duration of a pause is
    never predicted, because the last evaluation of a run can use all the data.
    """

    def __init__(self) -> None:
        self._signs = 0
        self._ended: deque[int] = deque(maxlen=2)

    def trained(self) -> None:
        """Count one sign of training progress."""
        self._signs += 1

    def paused(self, *, announced: bool) -> None:
        """Record a pause in the training.

        If the log `announced` the pause when it began, the pause is not used for predictions.
        """
        if announced:
            self._ended.clear()
        else:
            self._ended.append(self._signs)
        self._signs = 0

    @property
    def due(self) -> bool:
        """True if the next pause is expected at about this time."""
        if len(self._ended) < 2:
            return False
        least, most = min(self._ended), max(self._ended)
        alike = least >= _LEAST and most <= least * (1 + _LIKE)
        return alike and least * (1 - _LIKE) <= self._signs <= most * (1 + _LIKE)


#: Initial allowance for the waits in a phase, in multiples of `Limits.start`. Large models can load for an
#: hour, most logs show no sign of life during evaluations and saves, and rollouts can take 69 minutes. Up to
#: three hours without output were observed between the last line of a trainer and the end of its launcher.
PATIENCE: Mapping[Phase, float] = {"init": 2, "eval": 4, "save": 2, "rollout": 4, "idle": 8}
#: Phases in which the run completes no steps.
ANNOUNCED: tuple[Phase, ...] = ("eval", "save", "rollout", "weight-sync")
ENOUGH = 5  #: number of waits after which the threshold of a phase is learned
_WARM_UP = 2  # number of steps after the first that can be slow (for compilation, allocation, or CUDA graphs)
_MOST_STEPS = 4  # maximum factor of the initial allowance if the log shows only every n-th step

# The initial allowance for the first interval of a log is multiplied by this factor, because the interval can
# contain a rollout that the log does not show.
_UNSEEN_PATIENCE = 4
# Minimum threshold while a log has few steps, in multiples of the floor. With the default floor of 30 s,
# stalls are reported within 90 s.
_BRIEF = 2.8
#: Maximum number of waits that are kept; older waits are dropped, so thresholds adapt to changes.
REMEMBERED = 2000
KNOWN_TAIL = 600  #: minimum number of waits from which the durations of rare waits can be extrapolated
RARE = 1e-7  #: maximum share of steps whose normal duration is mistaken for a stall
_SLOW = 0.99  # percentile of the waits on which the threshold is based, as a share
_SURE = 0.95  # confidence of the estimated percentile while few steps are known
_QUICK = 0.1  # minimum wait in estimates, as a share of the mean; shorter waits are replaced by this minimum

# Maximum skewness at which waits count as log-normally distributed. If the skewness is higher, a power law is
# assumed.
_SKEWED = 0.7
_EVEN = 0.1  # maximum standard deviation of the logarithms of durations that count as nearly equal
_DOUBT_OF_TAIL = 2.0  # number of standard errors that are added to an estimate of the tail
_SHARE_OF_TAIL = 20  # divisor of the number of waits: the slowest twentieth of the waits is the tail
_LEAST_TAIL = 10
_ONCE_MORE = 2.0  # a wait can be this many times as long as the longest wait so far
_BENEFIT = 2.0  # additional factor if step durations vary and fewer than KNOWN_TAIL waits are known
_SURVIVED = 1.5  # the next pause can be this many times as long as a pause that ended by itself
_HABIT = 3  # number of pauses that must end by themselves before such pauses count as normal
_HABITS_KEPT = 20


class QuietTimes(Sequence[float]):
    """The durations of the latest periods without a sign of life, in seconds and in ascending order."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._ordered: list[float] = []

    def append(self, seconds: float) -> None:
        """Add a period. If there are more than `REMEMBERED` periods, drop the oldest period."""
        seconds = max(seconds, 1e-3)
        self._latest.append(seconds)
        insort(self._ordered, seconds)
        if len(self._latest) > REMEMBERED:
            del self._ordered[bisect_left(self._ordered, self._latest.popleft())]

    def extend(self, waits: Iterable[float]) -> None:
        """Add several periods without a sign of life."""
        for seconds in waits:
            self.append(seconds)

    def __len__(self) -> int:
        return len(self._ordered)

    def __iter__(self) -> Iterator[float]:
        return iter(self._ordered)

    def __getitem__(self, at: Any) -> Any:
        return self._ordered[at]


class Limits(NamedTuple):
    """The settings in the ``[stall]`` section of the configuration file."""

    floor: float = 30.0  #: minimum threshold in seconds
    start: float = 1800.0  #: threshold in seconds until enough waits are known
    factor: float = 3.0  #: factor by which the 99th percentile of the waits is multiplied


class PhaseWaits:
    """The durations for which a run showed no sign of life in one phase.

    Waits that ended with another sign of life of the same phase are stored separately from waits that ended
    when the next phase began.
    """

    def __init__(self) -> None:
        self.within, self.ends = QuietTimes(), QuietTimes()
        self._paused: list[float] = []  # durations of stalls that ended by themselves
        self._since_pause = 0
        self._habits: deque[float] = deque(maxlen=_HABITS_KEPT)

    def learn(self, seconds: float, *, over: bool) -> None:
        """Store a wait that ended with a sign of life.

        If `over` is true, this sign began a different phase.
        """
        (self.ends if over else self.within).append(seconds)
        self._since_pause += 1
        if self._since_pause > REMEMBERED:
            self._paused.clear()

    def paused(self, seconds: float) -> None:
        """Record a stall that ended by itself. Such a stall counts as normal only if it recurs."""
        self._since_pause = 0
        self._paused.append(seconds)
        if len(self._paused) >= _HABIT:
            self._habits.extend(self._paused)
            self._paused.clear()

    @property
    def longest(self) -> float:
        """The longest wait in this phase that was not a stall."""
        return max((waits[-1] for waits in (self.within, self.ends) if waits), default=0.0)

    @property
    def longest_pause(self) -> float:
        """The longest recent stall that ended by itself. Stalls that already count as normal are excluded."""
        return max(self._paused, default=0.0)

    def survived(self, most: float) -> float:
        """Return the allowed duration of a pause in seconds, limited to `most`.

        The duration is based on earlier pauses that ended by themselves.
        """
        return min(most, _SURVIVED * self.longest_pause)

    def threshold(self, *, floor: float, cap: float, factor: float, steps: bool) -> float:
        """Return the number of seconds without a sign of life after which the phase counts as stalled.

        The result is 0 if no wait is known. An estimate from the spread of the waits is at most `cap`. If
        `steps` is true, the phase consists of steps. In this case, waits that ended when another phase
        began are not used for such an estimate, because a phase can end for many reasons, and its last
        waits have no common distribution.
        """
        return max(
            threshold_after(self.within, cap=cap, factor=factor, floor=floor),
            threshold_after(self.ends, cap=0.0 if steps else cap, factor=factor, floor=floor),
            factor * max(self._habits, default=0.0),
        )


_DEFAULTS = Limits()


class StallThresholds:
    """The stall thresholds of each phase, learned from the waits of a run."""

    def __init__(self, limits: Limits = _DEFAULTS) -> None:
        self._limits = limits
        self.log_only = False  #: True if progress is known only from a log, which can omit activities
        self._stride = 1  # number of steps between two signs of progress (10 if a log shows every tenth step)
        self._warm_up = _WARM_UP
        self._warmed = 0.0  # duration of the longest wait in the warm-up
        self._trained = 0.0  # total duration of the steps that were observed in this run, in seconds
        self._waits: dict[Phase, PhaseWaits] = {}
        self._known: dict[Phase, float] = {}
        # Threshold of the phase "train", derived only from the durations of steps.
        self._suspected = limits.floor
        self._learning: set[Phase] = set()  # phases for which too few waits are known to learn the threshold
        self._usual: dict[Phase, float] = {}  # phase → threshold without the allowance for earlier pauses
        self._outdated: set[Phase] = {"init", "train"}
        self._rounds = TrainingRounds()

    # ---- observations

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
        """Record that the run waited in `phase` for `waited` seconds and then was in the phase `following`.

        If `after_evaluation` is true, the run computed the metrics of an evaluation during the wait. `learn`
        is false if the wait is not typical of the phase.
        """
        due = self._rounds.due
        if following == "train":
            self._rounds.trained()
        elif phase == "train" and following in ANNOUNCED:
            self._rounds.paused(announced=waited <= max(self.of("train").within[-1:], default=0.0))
        if self._rounds.due != due:
            self._outdated.add("train")
        if learn and waited > 0:
            # If `after_evaluation` is true, the run computed the metrics of the evaluation before the next
            # step.
            if after_evaluation and self.steps_known:
                self.of("eval").learn(waited, over=True)
                self._outdated.add("eval")
            else:
                self._learn(waited, phase, following, stalled=stalled)
        if following not in self._known:
            self._outdated.add(following)

    def step_by(self, steps: int) -> None:
        """Set the number of steps between two signs of progress."""
        if steps != self._stride:
            self._stride = steps
            self._outdated.add("train")

    def take_over(self, durations: Mapping[Phase, Sequence[float]]) -> None:
        """Add the waits of this run that an earlier Stallwatch process recorded."""
        for phase, seconds in durations.items():
            waits = self.of(phase)
            (waits.within if phase == "train" else waits.ends).extend(seconds)
            self._outdated.add(phase)
        if durations.get("train"):
            self._warm_up = 0
            self._trained = sum(durations["train"])

    def replay(self, durations: Mapping[Phase, Sequence[float]], stride: int) -> None:
        """Process all waits of a complete log. Each wait that exceeds its threshold counts as a stall."""
        for phase, seconds in durations.items():
            self._outdated.add(phase)
            for waited in seconds:
                # This value is a lower bound of the threshold and is faster to compute.
                least = max(self._limits.floor, self.of(phase).longest)
                stalled = waited > least and waited > self.alone[phase]
                self.observe(waited, phase, "train", stalled=stalled)
                self.step_by(stride)

    # ---- learned thresholds

    def of(self, phase: Phase) -> PhaseWaits:
        waits = self._waits.get(phase)
        if waits is None:
            waits = self._waits[phase] = PhaseWaits()
        return waits

    @property
    def steps_known(self) -> bool:
        """True if enough steps have been observed to estimate the duration of a step."""
        return len(self.of("train").within) >= ENOUGH

    @property
    def alone(self) -> Mapping[Phase, float]:
        """The current threshold of each phase, for use when the ranks cannot be queried."""
        self._update()
        return self._known

    def at_end(self, phase: Phase) -> float:
        """Return the threshold for a log that ended in this phase.

        While few waits are known, live watching waits longer, because more lines can follow. No lines follow
        the end of a complete log, so its threshold can be lower.
        """
        self._update()
        return self._threshold(phase, ended=True)

    @property
    def suspected(self) -> float:
        """The stall threshold of the phase "train", derived only from the durations of steps."""
        self._update()
        return self._suspected

    def learning(self, phase: Phase) -> bool:
        """Return whether the phase still uses the initial threshold, because too few waits are known."""
        return phase in self._learning

    def _update(self) -> None:
        # Thresholds are computed only when they are queried, because thousands of steps can arrive together.
        # "train" is updated first, because the thresholds of other phases depend on it.
        for phase in sorted(self._outdated, key=lambda phase: phase != "train"):
            self._known[phase] = self._threshold(phase)
            if phase == "train":
                waits, (floor, start, factor) = self.of(phase), self._limits
                learned = waits.threshold(floor=floor, cap=start, factor=factor, steps=True)
                self._suspected = max(floor, learned, waits.survived(start))
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
            waits.paused(waited)  # the pause was not reported as another stall, but it is not normal either
        else:  # the phase ended, or the log showed an evaluation only when the evaluation ended
            waits.learn(waited, over=phase != following)

    def _threshold(self, phase: Phase, *, ended: bool = False) -> float:
        waits, (floor, start_seconds, factor) = self.of(phase), self._limits
        start = start_seconds * PATIENCE.get(phase, 1.0)
        if phase == "train":
            start *= min(_MOST_STEPS, self._stride)
            known = len(waits.within) >= ENOUGH
            # The interval before the first sign of progress is included, because it has as many steps as
            # later intervals.
            usual = max(self.of("init").longest, self._warmed, waits.longest)
            if self.log_only:
                start *= 1 if self._warmed or waits.longest else _UNSEEN_PATIENCE
                usual = max(usual, waits.longest_pause)
        else:
            known = len(waits.ends) >= ENOUGH
            usual = waits.longest
            # Waits that end with a sign of life in the same phase are sufficient to learn the threshold of
            # the phase. The phase "init" is an exception, because its signs of life are the launches of ranks
            # in several attempts.
            if phase != "init" and len(waits.within) >= ENOUGH:
                start = start_seconds
        brief = self.log_only and phase == "train" and self._trained < floor and not ended
        if brief:
            # The first evaluation can show no sign of life, and the frequency and duration of evaluations are
            # unknown.
            floor *= _BRIEF
        # A log rarely shows the end of an evaluation, so training might already have resumed.
        steps = 0.0
        if self.log_only and phase in ANNOUNCED:
            steps = self._threshold("train", ended=True) if ended else self._known.get("train", 0.0)
        learned = waits.threshold(floor=floor, cap=start, factor=factor, steps=phase == "train")
        # Allowance while few waits are known.
        allowed = max(start_seconds if ended else start, factor * usual)
        base = max(learned, floor if known else allowed)
        if self.log_only and phase == "train" and self._rounds.due:
            # The run is probably in an evaluation, so the threshold is at least the threshold of evaluations.
            steps = min(start_seconds, self._threshold("eval"))
        threshold = max(base, steps, waits.survived(start))
        if ended:
            return threshold
        self._usual[phase] = max(base, steps)
        self._learning.discard(phase)
        if threshold == base and (not known or (brief and base == floor)):
            self._learning.add(phase)
        return threshold


def limit_of_steps(durations: Sequence[float], limits: Limits) -> float:
    """Return the stall threshold, in seconds, that follows from these step durations alone."""
    waits, (floor, start, factor) = PhaseWaits(), limits
    waits.within.extend(durations)
    learned = waits.threshold(floor=floor, cap=start, factor=factor, steps=True)
    return max(learned, floor if len(durations) >= ENOUGH else start)


def threshold_after(waits: Sequence[float], *, cap: float, factor: float, floor: float) -> float:
    """Return the threshold that follows from these waits. An estimate from their spread is at most `cap`.

    If few waits are known, the estimate is twice the usual multiple of an upper limit of the 99th percentile.
    A larger estimate might leave a hang unnoticed for half an hour.
    """
    if not waits:
        return 0.0
    waits = sorted(waits)  # sorting is fast if the waits are already in order
    longest = waits[-1]
    if len(waits) < ENOUGH:
        return factor * longest
    # The 99th percentile by the nearest-rank method.
    plain = factor * waits[math.ceil(_SLOW * len(waits)) - 1]
    if len(waits) >= KNOWN_TAIL:
        varied = longest_rare_wait(waits)
    else:
        varied = _BENEFIT * factor * upper_percentile_limit(waits)
        if varied > floor:  # if the limit of fast steps is below the floor, the floor is sufficient
            varied = max(varied, _BENEFIT * floor)
    return max(plain, _ONCE_MORE * longest, min(cap, varied))


def upper_percentile_limit(waits: Sequence[float]) -> float:
    """Return a 95% upper confidence limit for the 99th percentile of waits, or 0 for nearly equal waits.

    The 99th percentile of 20 steps is the slowest of these steps, but on average, one of 21 further steps is
    slower. Therefore, the percentile is estimated from all steps. The method assumes that the logarithms of
    the waits are normally distributed, and uses the usual approximation of a one-sided tolerance limit (G. J.
    Hahn, W. Q. Meeker, Statistical Intervals, 1991). If the logarithms are skewed to the slow side, the
    method assumes a power law and applies Hill's estimator to the slower half (B. M. Hill, A Simple General
    Approach to Inference About the Tail of a Distribution, Annals of Statistics 3, 1975).
    """
    ordered = sorted(waits)
    if _even(ordered, both_ends=True):
        return 0.0
    # The fastest steps provide no information about the slowest steps. For example, a batch might have been
    # loaded in advance. Therefore, short waits are replaced with a minimum.
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


def longest_rare_wait(waits: Sequence[float]) -> float:
    """Estimate the duration of very rare waits from the longest waits.

    If the waits are nearly equal, nothing is extrapolated. Otherwise, the function uses the moment estimator
    of the tail, which suits any distribution (A. L. M. Dekkers, J. H. J. Einmahl, L. de Haan, A Moment
    Estimator for the Index of an Extreme-Value Distribution, Annals of Statistics 17, 1989). Twice the
    standard error is added to the estimate, because a false stall is worse than a late report.
    """
    ordered = sorted(waits)
    if _even(ordered):
        return ordered[-1]
    count = max(_LEAST_TAIL, len(ordered) // _SHARE_OF_TAIL)
    edge = ordered[-count - 1]
    above = [math.log(wait / edge) for wait in ordered[-count:]]
    first, second = sum(above) / count, sum(log * log for log in above) / count
    if second <= first * first or first <= 0:  # all waits are nearly equal
        return ordered[-1]
    bounded = 1 - 0.5 / (1 - first * first / second)  # negative if the tail has an upper bound
    index = max(first + bounded + _DOUBT_OF_TAIL / math.sqrt(count), 1e-6)
    scale = edge * first * (1 - min(0.0, bounded))
    times = count / (len(ordered) * RARE)
    return edge + scale * math.expm1(min(index * math.log(times), 700.0)) / index


def _even(ordered: Sequence[float], *, both_ends: bool = False) -> bool:
    """Return whether the waits are nearly equal, based on the ratio of the longest wait to the median.

    If `both_ends` is true, the ratio of the median to the shortest wait must also be small. If only a few
    waits are known, the longest wait can be near the median by chance.
    """
    usual = math.exp(_EVEN * NormalDist().inv_cdf(1 - 1 / (len(ordered) + 1)))
    middle = ordered[len(ordered) // 2]
    return ordered[-1] <= middle * usual and (not both_ends or ordered[0] >= middle / usual)
