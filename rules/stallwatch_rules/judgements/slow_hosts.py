"""Use a sequential test of step times to find the host or rank for which all other ranks of a run wait.

In synchronous training, whole steps take the same time on all ranks. The ranks differ in the time at which
they begin the backward pass. In the collectives of the backward pass, all ranks wait for the last rank. A
rank's value for a step is the logarithm of its own time until the backward pass, minus the part that its
number of tokens explains. A rank's deviation is this value minus the median value of the other hosts (or
ranks) that do the same work. A host is slow if the mean deviation over a window of steps exceeds both the
least relevant slowdown and the level that the noise of the run can produce. The noise is estimated from the
differences between successive deviations, because a slow host hardly changes these differences. The noise
is assumed to have first-order autocorrelation. The test needs one pass and bounded memory.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import median
from typing import Generic, Literal, NamedTuple, TypeVar

from stallwatch_rules.stacks.records import RankGroup
from stallwatch_rules.stacks.spans import ranks_in

WINDOWS = (10, 20, 40, 80, 160, 320, 640)  #: window lengths, in steps, of the test for slow hosts
OF_RANKS = WINDOWS[:4]  #: window lengths, in steps, of the test for slow ranks
LEAST = math.log(1.065)  #: minimum mean deviation of a slow host, as a logarithm
Z = 6.5  #: minimum mean deviation in standard errors; noise alone exceeds it once in 2.5 × 10¹⁰ mean values
#: Minimum share of steps with a positive deviation. In long windows, the minimum is smaller (see
#: `required_positive_steps`).
POSITIVE = 0.8
LEAST_COST = 0.01  #: minimum cost of a slow host, as a share of the throughput
_WARM_UP = 2  # number of first steps that can be slow (for compilation, allocation, or CUDA graphs)
FIRST = 16  #: number of steps before the first verdict
GROWN = 1.5  #: a lag above this multiple of the reported lag is reported again
OVER = 20  #: minimum number of steps over which a host must have caught up
_CLIP = 4.0  # maximum deviation of one step, in standard deviations; larger deviations are clipped
_LEAST_CLIP = 2 * LEAST  # deviation below which a step is never clipped
_MEMORY = 64  # minimum number of steps from which the noise of all hosts is estimated
_VALUES = 1024  # number of values from which the noise is estimated; with fewer hosts, more steps are used
_QUICK = 512  # number of values for a rough estimate of the noise, which shows an increase sooner
_LEAST_QUICK = 5
# Number of steps from which the usual noise is determined. If a run has two or three hosts, a host that
# becomes slow changes the median, but only in one step.
_USUAL_OF = 3
_OWN_MEMORY = 256  # number of steps from which the noise of one series is estimated
_MOST_CORRELATED = 0.95
_RECENT = 64  # number of last steps whose deviations are kept individually
_MEAN_OF = 4  # approximate number of steps in a rank's mean times; the test of a change needs more steps
_MOST_RANKS = 16_384
_MOST_OPEN = 512  # maximum number of incomplete steps, and of steps by which a rank can be behind or ahead
# Relative variation of tokens below which the time is assumed to be proportional to the tokens.
_TOKENS_VARY = 0.05
_MOST_SLOPE = 2.0  # maximum exponent of tokens in the time, because attention takes quadratic time
_MEDIAN_TO_SD = 0.6745

_Key = TypeVar("_Key", bound=Hashable)


class RankStep(NamedTuple):
    """One rank's report on one step: times and the number of tokens."""

    own: float  #: seconds from the end of the previous step to the backward pass
    whole: float  #: duration of the step in seconds
    tokens: float = 0.0  #: number of tokens in the step, or 0 if they are not counted


class SlowHost(NamedTuple):
    """The host for which the other hosts wait."""

    host: str
    rank: int | None  #: the late rank, if only this rank of the host is late, or the host has only one rank
    share: float  #: relative excess of the host's own time over the own time of other hosts
    cost: float  #: lost share of the run's throughput
    steps: int  #: number of steps over which the host was late
    kind: Literal["slow", "imbalance"]  #: imbalance: the host processes more tokens than other hosts


class Lag(NamedTuple, Generic[_Key]):
    """A host or rank that lags behind its peers."""

    key: _Key
    mean: float  #: mean deviation, as a logarithm
    steps: int


class _Series:
    """The deviations of one host or rank from its peers, one for each step."""

    __slots__ = ("_positive", "_sums", "before", "last", "noise", "recent", "seen", "steps")

    def __init__(self, most: int) -> None:
        self.steps = 0
        self._sums = array("d", bytes(8 * (most + 1)))  # cumulative sums of clipped deviations, by step
        self._positive = array("q", bytes(8 * (most + 1)))  # cumulative counts of positive deviations
        self.recent: deque[float] = deque(maxlen=_RECENT)
        self.last: float | None = None
        self.before: float | None = None  # the last difference between successive deviations, clipped
        self.noise = 0.0  # noise of this series: mean square of differences between successive deviations
        self.seen = 0  # number of differences in ``noise``

    def add(self, deviation: float, clip: float) -> None:
        size = len(self._sums)
        here, there = self.steps % size, (self.steps + 1) % size
        clipped = max(-clip, min(clip, deviation))
        self._sums[there] = self._sums[here] + clipped
        self._positive[there] = self._positive[here] + (deviation > 0)
        self.steps += 1
        self.recent.append(deviation)

    def mean(self, steps: int) -> float:
        size = len(self._sums)
        return (self._sums[self.steps % size] - self._sums[(self.steps - steps) % size]) / steps

    def positive(self, steps: int) -> int:
        size = len(self._positive)
        return self._positive[self.steps % size] - self._positive[(self.steps - steps) % size]

    def typical(self, steps: int) -> float:
        """Return the deviation over the latest steps, for display.

        If there are few steps, the result is the median of the unclipped values.
        """
        if steps <= _RECENT:
            return median(list(self.recent)[-steps:])
        return self.mean(min(steps, len(self._sums) - 1))


class Comparison(Generic[_Key]):
    """A sequential test that uses the deviations in each step to find the host or rank that lags behind."""

    def __init__(self, windows: Sequence[int] = WINDOWS) -> None:
        self._windows = windows
        self._series: dict[_Key, _Series] = {}
        self._steps = 0  # number of steps that contributed differences
        self._square = 0.0  # mean square of differences between successive deviations
        self._product = 0.0  # mean product of two successive differences
        self._quick = 0.0  # `_square` over fewer steps
        self._usual: deque[float] = deque(maxlen=_USUAL_OF)  # median squared differences of all series

    def see(self, deviations: Mapping[_Key, float]) -> Lag[_Key] | None:
        """Add the deviations of a step. If any key lags, return the lag of the key that lags most."""
        if self._series.keys() != deviations.keys():
            self._series = {key: self._series.get(key) or _Series(self._windows[-1]) for key in deviations}
        self._learn(deviations)
        clip = max(_LEAST_CLIP, _CLIP * self._scale()) if self._steps else _LEAST_CLIP
        worst: Lag[_Key] | None = None
        for key, deviation in deviations.items():
            series = self._series[key]
            series.add(deviation, clip)
            if deviation > 0 and series.steps >= FIRST:
                found = self._judge(key, series)
                if found is not None and (worst is None or found.mean > worst.mean):
                    worst = found
        return worst

    def lag(self, key: _Key, steps: int) -> float | None:
        """Return the typical deviation of a key over the latest steps."""
        series = self._series.get(key)
        return None if series is None or not series.steps else series.typical(min(steps, series.steps))

    def size(self, key: _Key, steps: int) -> float:
        """Return the size of a lag since it began, which can be later than the start of the window."""
        recent = list(self._series[key].recent)[-steps:]
        ends = [(median(recent[-count:]), count) for count in range(_LEAST_QUICK, len(recent) + 1)]
        lag = max(ends, key=lambda end: end[0] * math.sqrt(end[1]), default=(0.0, 0))[0]
        return max(lag, self._series[key].mean(steps))

    def restart(self, keys: Iterable[_Key]) -> None:
        """Restart the test for these keys, because they no longer lag. Keep the estimates of their noise."""
        for key in keys:
            if (series := self._series.get(key)) is not None:
                series.steps = 0
                series.recent.clear()

    def _learn(self, deviations: Mapping[_Key, float]) -> None:
        """Update the estimates of the noise from the changes since the last step.

        A key that has no earlier value, for example, after a restart, is skipped.
        """
        seen: list[tuple[_Series, float]] = []
        for key, deviation in deviations.items():
            series = self._series[key]
            if series.last is not None:
                seen.append((series, deviation - series.last))
            series.last = deviation
        if not seen:
            return
        self._usual.append(median(each * each for _, each in seen) / _MEDIAN_TO_SD**2)
        most = _CLIP * math.sqrt(max(self._square, median(self._usual)))
        clipped = [(series, max(-most, min(most, each))) for series, each in seen]
        self._steps += 1
        mean = sum(each * each for _, each in clipped) / len(clipped)
        quick = max(_LEAST_QUICK, _QUICK // len(clipped))
        self._square += (mean - self._square) / min(self._steps, self._memory)
        self._quick += (mean - self._quick) / min(self._steps, quick, _MEMORY)
        products = [each * series.before for series, each in clipped if series.before is not None]
        if products:
            mean = sum(products) / len(products)
            self._product += (mean - self._product) / min(max(1, self._steps - 1), self._memory)
        for (series, each), (_, difference) in zip(clipped, seen, strict=True):
            series.before = each
            most_own = _CLIP**2 * max(self._square, series.noise)
            series.seen = min(series.seen + 1, _OWN_MEMORY)
            series.noise += (min(difference * difference, most_own) - series.noise) / series.seen

    @property
    def _memory(self) -> int:
        return max(_MEMORY, _VALUES // max(1, len(self._series)))

    def _samples(self) -> float:
        """Return the approximate number of independent values on which the estimate of the noise is based."""
        return max(1.0, (len(self._series) - 1) * min(self._steps, 2 * self._memory - 1) / 2)

    def _correlation(self) -> float:
        """Return an upper bound on the correlation between successive steps."""
        if not self._square:
            return 0.0
        given = 1 + 2 * self._product / self._square + 3 / math.sqrt(self._samples())
        return min(_MOST_CORRELATED, max(0.0, given))

    def _scale(self, own: float = 0.0) -> float:
        """Return the standard deviation of a single value.

        `own` is the mean squared difference between successive values in one series.
        """
        square = max(self._square, self._quick, own)
        return math.sqrt(square / (2 * (1 - self._correlation())))

    def _judge(self, key: _Key, series: _Series) -> Lag[_Key] | None:
        best: Lag[_Key] | None = None
        for steps in self._windows:
            if steps > series.steps:
                break
            if series.steps % max(1, steps // 32):
                continue  # a long window changes little in one step
            mean = series.mean(steps)
            if (
                mean >= LEAST
                and (best is None or mean > best.mean)
                and series.positive(steps) >= required_positive_steps(steps)
                and self._score(series, mean, steps) >= Z
            ):
                best = Lag(key, mean, steps)
        return best

    def _score(self, series: _Series, mean: float, steps: int) -> float:
        """Return the number of standard errors by which the mean exceeds zero.

        The noise is estimated from a limited number of values. Therefore, the score, which has Student's
        distribution, is converted to a normal score (approximation of D. L. Wallace, 1959).
        """
        least_noise = series.noise * max(
            0.0, 1 - 3 / math.sqrt(series.seen)
        )  # lower bound of the series' own noise
        correlated = self._correlation()
        rest = 1 - correlated
        spread = (1 + correlated) / rest - 2 * correlated * (1 - correlated**steps) / (steps * rest**2)
        error = self._scale(least_noise) * math.sqrt(spread / steps)
        if error == 0:
            return math.inf
        samples = self._samples()
        return math.sqrt(samples * math.log1p((mean / error) ** 2 / samples))


class SlowHosts:
    """A detector for a host that delays other hosts. It accepts the steps of all ranks in any order."""

    def __init__(self, least_cost: float = LEAST_COST, least_seconds: float = 0.0) -> None:
        """Set the minimum cost of a slow host, as a share of the throughput and in seconds per step."""
        self._least_cost, self._least_seconds = least_cost, least_seconds
        self._open: dict[int, dict[int, RankStep]] = {}  # step → rank → times
        self._at: dict[int, int] = {}  # rank → last reported step
        self._host: dict[int, str] = {}
        self._group: dict[int, str] = {}  # rank → group of ranks that do the same work, if known
        self._hosts: Comparison[str] = Comparison()
        self._ranks: Comparison[int] = Comparison(OF_RANKS)
        self._raw: Comparison[str] = Comparison()  # comparison that ignores tokens
        self._own: dict[int, float] = {}  # rank → own seconds, as a mean over the last steps
        self._whole: dict[int, float] = {}
        self._explained = self._varied = 0.0  # covariance of times and tokens, and variance of tokens
        self._since = 0  # number of steps since a slow host was found
        self.steps = 0  #: number of compared steps
        self.slow: SlowHost | None = None

    @property
    def compares(self) -> bool:
        """True if at least two ranks report their steps, so that they can be compared."""
        return len(self._at) >= 2

    def layout(self, groups: Iterable[RankGroup]) -> None:
        """Set the process groups.

        Ranks are compared only with ranks of their data-parallel group, which do the same work.
        """
        same = {rank: group.id for group in groups if group.axis == "dp" for rank in ranks_in(group.ranks)}
        if same and same != self._group:
            self._group = same
            self._hosts, self._ranks, self._raw = Comparison(), Comparison(OF_RANKS), Comparison()

    def join(self, host: str, rank: int, step: int) -> None:
        """Add a rank. After this call, a step is compared only if this rank has reported the step."""
        self._at[rank], self._host[rank] = step, host

    def see(self, host: str, rank: int, step: int, times: RankStep) -> bool:
        """Add a step of a rank and return whether ``slow`` changed as a result."""
        if rank not in self._at and len(self._at) >= _MOST_RANKS:
            return False
        if not (0 < times.own < math.inf and 0 < times.whole < math.inf and times.tokens >= 0):
            return False
        before = self.slow
        if step not in self._open:
            self._forget(step)
        self.join(host, rank, step)
        reported = self._open.setdefault(step, {})
        reported[rank] = times
        if len(self._open) > _MOST_OPEN:
            # The oldest step is the step that was reported first. After a restart, step numbers can be lower.
            del self._open[next(iter(self._open))]
        if self.compares and len(reported) >= len(self._at):
            self._compare(self._open.pop(step))
        return self.slow != before

    def leave(self, host: str) -> bool:
        """Remove the ranks of a lost host and return whether ``slow`` changed as a result."""
        return self._keep({rank for rank in self._at if self._host[rank] != host})

    def _forget(self, step: int) -> None:
        """Remove ranks whose last step is far from this step, because these ranks no longer participate."""
        self._keep({rank for rank, at in self._at.items() if abs(step - at) < _MOST_OPEN})

    def _keep(self, ranks: set[int]) -> bool:
        if len(ranks) < len(self._at):
            for known in (self._at, self._host, self._own, self._whole):
                for rank in known.keys() - ranks:
                    del known[rank]
            self._open = {
                step: {rank: times for rank, times in reported.items() if rank in ranks}
                for step, reported in self._open.items()
                if not ranks <= reported.keys()
            }
        if self.slow is not None and self.slow.host not in self._host.values():
            self.slow = None
            return True
        return False

    # ---- a step that all ranks have reported

    def _compare(self, step: Mapping[int, RankStep]) -> None:
        self.steps += 1
        for rank, times in step.items():
            for means, value in ((self._own, times.own), (self._whole, times.whole)):
                means[rank] = means.get(rank, value) + (value - means.get(rank, value)) / _MEAN_OF
        if self.steps <= _WARM_UP:
            return
        raw = {rank: math.log(times.own) for rank, times in step.items()}
        values = raw
        counted = all(times.tokens > 0 for times in step.values())
        if counted:
            tokens = {rank: math.log(times.tokens) for rank, times in step.items()}
            slope = self._slope(raw, tokens)
            values = {rank: raw[rank] - slope * tokens[rank] for rank in raw}
        found: Lag[str] | Lag[int] | None = self._hosts.see(self._of_hosts(values))
        # The test of single ranks adds nothing if each host has one rank.
        if len(set(self._host.values())) < len(step):
            late_rank = self._ranks.see(self._of_ranks(values))
            found = found or late_rank
        imbalance = self._raw.see(self._of_hosts(raw)) if counted else None
        self._since += 1
        if self.slow is not None:
            if self._since >= OVER:
                self._look_again(self.slow)
            return
        if found is not None:
            host = found.key if isinstance(found.key, str) else self._host[found.key]
            self._report(host, found, "slow")
        elif imbalance is not None:
            explained = imbalance.mean - (self._hosts.lag(imbalance.key, imbalance.steps) or 0.0)
            if explained >= imbalance.mean / 2:
                self._report(imbalance.key, imbalance, "imbalance")

    def _slope(self, raw: Mapping[int, float], tokens: Mapping[int, float]) -> float:
        """Return the exponent of tokens in a rank's time: 0 for no effect, 1 for a proportional effect."""
        usual, usual_tokens = median(raw.values()), median(tokens.values())
        explained = varied = 0.0
        for rank, value in raw.items():
            more = tokens[rank] - usual_tokens
            explained += max(-0.5, min(0.5, value - usual)) * more
            varied += more * more
        kept = 1 - 1 / min(self.steps, _MEMORY)
        self._explained = kept * self._explained + (1 - kept) * explained / len(raw)
        self._varied = kept * self._varied + (1 - kept) * varied / len(raw)
        prior = _TOKENS_VARY**2
        return max(0.0, min(_MOST_SLOPE, (self._explained + prior) / (self._varied + prior)))

    def _of_ranks(self, values: Mapping[int, float]) -> dict[int, float]:
        groups: dict[str, dict[int, float]] = {}
        for rank, value in values.items():
            groups.setdefault(self._group.get(rank, ""), {})[rank] = value
        return {rank: each for group in groups.values() for rank, each in deviations(group).items()}

    def _of_hosts(self, values: Mapping[int, float]) -> dict[str, float]:
        """Return the deviation of each host from the other hosts, as the median over its process groups.

        Within a process group, the median of the host's ranks is used.
        """
        groups: dict[str, dict[str, list[float]]] = {}
        for rank, value in values.items():
            hosts = groups.setdefault(self._group.get(rank, ""), {})
            hosts.setdefault(self._host[rank], []).append(value)
        found: dict[str, list[float]] = {}
        for hosts in groups.values():
            for host, each in deviations({host: median(each) for host, each in hosts.items()}).items():
                found.setdefault(host, []).append(each)
        return {host: median(each) for host, each in found.items()}

    def _report(self, host: str, lag: Lag[str] | Lag[int], kind: Literal["slow", "imbalance"]) -> None:
        mine = [rank for rank, where in self._host.items() if where == host]
        late = (
            mine
            if len(mine) == 1
            else [number for number in mine if (self._ranks.lag(number, lag.steps) or 0.0) >= lag.mean / 2]
        )
        if isinstance(lag.key, int):
            rank = lag.key if len(late) <= max(1, len(mine) // 2) else None
            more = self._ranks.size(lag.key, lag.steps)
        else:
            rank = late[0] if len(late) == 1 else None
            more = (self._raw if kind == "imbalance" else self._hosts).size(lag.key, lag.steps)
            if rank is not None and len(mine) > 1:
                more = max(more, self._ranks.lag(rank, lag.steps) or 0.0)
        if (self._raw.lag(host, OVER) or 0.0) < -LEAST:
            return  # the host is slow, but has so much less work that no rank waits
        slow = self._with_cost(host, rank, more, lag.steps, kind)
        whole = median(self._whole.values())
        # The part of the step for which no rank waits.
        alone = median(self._whole[number] for number in self._ranks_of(slow)) - whole
        if alone < slow.cost * whole / 2 and self._is_costly(slow.cost):
            self._since = 0
            self.slow = slow

    def _with_cost(
        self, host: str, rank: int | None, more: float, steps: int, kind: Literal["slow", "imbalance"]
    ) -> SlowHost:
        slow = SlowHost(host, rank, math.exp(more) - 1, 0.0, steps, kind)
        later = median(self._own[number] for number in self._ranks_of(slow)) * (1 - math.exp(-more))
        return slow._replace(cost=min(1.0, later / median(self._whole.values())))

    def _is_costly(self, cost: float) -> bool:
        return cost >= self._least_cost and cost * median(self._whole.values()) >= self._least_seconds

    def _ranks_of(self, slow: SlowHost) -> list[int]:
        if slow.rank is not None:
            return [slow.rank]
        return [rank for rank, host in self._host.items() if host == slow.host]

    def _look_again(self, slow: SlowHost) -> None:
        """If the slow host has caught up with other hosts or has become much slower, update `slow`."""
        steps = max(OVER, 2 * slow.steps)  # a short time is weak evidence in noisy runs
        lag = self._lag_of(slow, steps) or 0.0
        now = self._with_cost(slow.host, slow.rank, lag, slow.steps, slow.kind)
        if lag < LEAST / 2 or not self._is_costly(2 * now.cost):
            self.slow = None
            self._hosts.restart([slow.host])
            self._raw.restart([slow.host])
            self._ranks.restart(self._ranks_of(slow._replace(rank=None)))
        elif self._since % steps == 0 and now.share >= GROWN * slow.share:
            self.slow = now

    def _lag_of(self, slow: SlowHost, steps: int) -> float | None:
        if slow.kind == "imbalance":
            return self._raw.lag(slow.host, steps)
        if slow.rank is not None and (of_rank := self._ranks.lag(slow.rank, steps)) is not None:
            return of_rank
        return self._hosts.lag(slow.host, steps)


def required_positive_steps(steps: int) -> float:
    """Return the minimum number of steps in a window in which a lagging host is slower than its peers.

    The number is at most half of the steps plus four standard errors.
    """
    return min(POSITIVE * steps, steps / 2 + 2 * math.sqrt(steps))


def deviations(values: Mapping[_Key, float]) -> dict[_Key, float]:
    """Return the excess of each value over the median of the other values. A single value has no excess."""
    others = len(values) - 1
    if others < 1:
        return {}
    ordered = sorted(values.values())
    middle, odd = divmod(others, 2)
    found: dict[_Key, float] = {}
    for key, value in values.items():
        at = bisect_left(ordered, value)
        upper = ordered[middle if middle < at else middle + 1]
        lower = upper if odd else ordered[middle - 1 if middle - 1 < at else middle]
        found[key] = value - (upper + lower) / 2
    return found
