"""The stall threshold: three times the usual for even steps, and longer for steps that vary by nature."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

import pytest

from stallwatch_rules.progress.threshold import (
    PhaseWaits,
    longest_rare_wait,
    threshold_after,
    upper_percentile_limit,
)


def drawn(spread: float, count: int, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [10.0 * draw.lognormvariate(0, spread) for _ in range(count)]


def test_threshold_of_even_steps_is_three_times_their_99th_percentile() -> None:
    waits = drawn(0.05, 1000)
    p99 = sorted(waits)[989]
    assert threshold_after(waits, cap=1800.0, factor=3.0, floor=30.0) == pytest.approx(3 * p99)


def test_threshold_grows_with_variance_up_to_a_limit() -> None:
    spreads = (0.05, 0.3, 0.6, 1.0)
    limits = [threshold_after(drawn(spread, 1000), cap=1800.0, factor=3.0, floor=30.0) for spread in spreads]
    assert limits == sorted(limits)
    assert limits[0] < 40 < 100 < limits[2] <= limits[3] == 1800.0


@pytest.mark.parametrize("count", [5, 8, 20, 99, 300, 700, 2000])
def test_threshold_of_even_steps_is_independent_of_their_number(count: int) -> None:
    for seed in range(20):
        waits = drawn(0.03, count, seed)
        p99 = sorted(waits)[math.ceil(0.99 * count) - 1]
        assert threshold_after(waits, cap=1800.0, factor=3.0, floor=30.0) == 3 * p99


def quantile(tail: str, share: float) -> float:
    if tail == "lognormal":
        return math.exp(0.6 * NormalDist().inv_cdf(share))
    rest = -math.log(1 - share)
    return math.exp(rest / 2) if tail == "Pareto" else rest ** (1 / 0.8)


@pytest.mark.parametrize("count", [5, 20, 100, 300])
@pytest.mark.parametrize("tail", ["lognormal", "Pareto", "Weibull"])
def test_percentile_of_few_steps_follows_from_their_variance(tail: str, count: int) -> None:
    """In most runs it is no lower than that of the distribution; the sample's own is, in many more."""
    too_low = own_too_low = 0
    for seed in range(100):
        draw = random.Random(seed)
        # By the inverse of each distribution, so that the 99th percentile is what 0.99 gives.
        *waits, p99 = [quantile(tail, share) for share in [*(draw.random() for _ in range(count)), 0.99]]
        too_low += upper_percentile_limit(waits) < p99
        own_too_low += sorted(waits)[math.ceil(0.99 * count) - 1] < p99
    assert too_low <= {5: 45, 20: 25}.get(count, 12)
    assert too_low < own_too_low


def test_skewed_steps_are_not_even() -> None:
    assert upper_percentile_limit([9.0, 9.5, 9.9, 10.0, 10.2]) == 0.0
    assert upper_percentile_limit([1.5, 6.0, 9.9, 10.0, 10.2]) > 20.0


def test_threshold_of_fast_steps_is_the_floor() -> None:
    assert threshold_after(drawn(0.3, 20)[:20], cap=1800.0, factor=3.0, floor=30.0) > 30
    assert threshold_after([wait / 40 for wait in drawn(0.3, 20)], cap=1800.0, factor=3.0, floor=30.0) < 30


@pytest.mark.parametrize("count", [20, 240, 599])
def test_threshold_of_few_steps_is_bounded(count: int) -> None:
    """A hang of a young run is reported within about a minute, not after half an hour."""
    waits = [wait / 10 for wait in drawn(0.6, count)]  # around a second, like the recorded stall of the demo
    p99 = sorted(waits)[math.ceil(0.99 * count) - 1]
    assert threshold_after(waits, cap=1800.0, factor=3.0, floor=30.0) <= 2 * max(30.0, 3 * p99)


@pytest.mark.parametrize("index", [2.0, 3.0, 4.0])
def test_tail_of_a_pareto_distribution_is_extrapolated(index: float) -> None:
    """In nine of ten runs, less than one step in a hundred thousand is slower than the limit."""
    draw = random.Random(7)
    beyond = []
    for _ in range(40):
        waits = [draw.paretovariate(index) for _ in range(2000)]
        beyond.append(longest_rare_wait(waits) ** -index)
    assert sorted(beyond)[36] < 1e-5


def test_equal_waits_have_no_tail() -> None:
    assert longest_rare_wait([2.0] * 500) == 2.0


def known(waits: PhaseWaits) -> float:
    return max(30.0, waits.threshold(floor=30.0, cap=1800.0, factor=3.0, steps=True))


def test_repeated_pauses_raise_the_threshold() -> None:
    waits = PhaseWaits()
    for seconds in (200.0, 200.0, 210.0):
        waits.paused(seconds)
    for _ in range(2100):
        waits.learn(1.0, over=False)
    assert known(waits) == 630.0  # and steps do not wash it away


def test_pause_can_recur_with_more_duration() -> None:
    waits = PhaseWaits()
    for _ in range(400):
        waits.learn(1.0, over=False)
    waits.paused(200.0)
    assert (waits.survived(1800.0), known(waits)) == (300.0, 30.0)
    waits.paused(7200.0)  # an outage of two hours hides no hang for three
    assert waits.survived(1800.0) == 1800.0
    for _ in range(2001):
        waits.learn(1.0, over=False)
    assert waits.survived(1800.0) == 0.0  # and it is forgotten
