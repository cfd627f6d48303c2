"""How long is too long: three times the usual where steps are even, and longer where they vary by nature."""

from __future__ import annotations

import math
import random

import pytest

from stallwatch_exporter.watching.rhythm import Rhythm, rare, too_long


def drawn(spread: float, count: int, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [10.0 * draw.lognormvariate(0, spread) for _ in range(count)]


def test_even_steps_are_given_three_times_their_99th_percentile() -> None:
    waits = drawn(0.05, 1000)
    p99 = sorted(waits)[989]
    assert too_long(waits, cap=1800.0, factor=3.0, floor=30.0) == pytest.approx(3 * p99)


def test_the_more_steps_vary_the_longer_it_waits_and_never_longer_than_for_an_unknown_rhythm() -> None:
    spreads = (0.05, 0.3, 0.6, 1.0)
    limits = [too_long(drawn(spread, 1000), cap=1800.0, factor=3.0, floor=30.0) for spread in spreads]
    assert limits == sorted(limits)
    assert limits[0] < 40 < 100 < limits[2] <= limits[3] == 1800.0


@pytest.mark.parametrize("count", [5, 8, 20, 99, 300, 700, 2000])
def test_even_steps_are_given_no_more_however_few_or_many_they_are(count: int) -> None:
    for seed in range(20):
        waits = drawn(0.03, count, seed)
        p99 = sorted(waits)[math.ceil(0.99 * count) - 1]
        assert too_long(waits, cap=1800.0, factor=3.0, floor=30.0) == 3 * p99


def test_a_few_steps_of_a_heavy_tail_are_not_trusted() -> None:
    """After 20 steps about one further step in thirty thousand is slower than what was concluded."""
    beyond = []
    for seed in range(60):
        draw = random.Random(seed)
        beyond.append(rare([draw.paretovariate(2.0) for _ in range(20)]) ** -2.0)
    assert sum(beyond) / len(beyond) < 5e-5


def test_fast_steps_stay_below_the_floor() -> None:
    assert too_long(drawn(0.3, 20)[:20], cap=1800.0, factor=3.0, floor=30.0) > 30
    assert too_long([wait / 40 for wait in drawn(0.3, 20)], cap=1800.0, factor=3.0, floor=30.0) < 30


@pytest.mark.parametrize("count", [20, 240, 599])
def test_from_few_steps_no_more_than_twice_the_plain_rule_is_concluded(count: int) -> None:
    """A hang of a young run is told within a minute or so, not after half an hour."""
    waits = [wait / 10 for wait in drawn(0.6, count)]  # around a second, like the recorded stall of the demo
    p99 = sorted(waits)[math.ceil(0.99 * count) - 1]
    assert too_long(waits, cap=1800.0, factor=3.0, floor=30.0) <= 2 * max(30.0, 3 * p99)


@pytest.mark.parametrize("index", [2.0, 3.0, 4.0])
def test_the_tail_of_a_pareto_distribution_is_carried_on(index: float) -> None:
    """In nine of ten runs less than one step in a hundred thousand is slower than what was concluded."""
    draw = random.Random(7)
    beyond = []
    for _ in range(40):
        waits = [draw.paretovariate(index) for _ in range(2000)]
        beyond.append(rare(waits) ** -index)
    assert sorted(beyond)[36] < 1e-5


def test_waits_that_are_all_alike_have_no_tail() -> None:
    assert rare([2.0] * 500) == 2.0


def test_pauses_that_end_by_themselves_become_a_habit() -> None:
    rhythm = Rhythm()
    rhythm.within.extend([1.0] * 400)
    given = {"floor": 30.0, "start": 1800.0, "factor": 3.0, "known": True, "steps": True}
    rhythm.paused(200.0)
    rhythm.paused(200.0)
    assert rhythm.threshold(**given) == 30.0
    rhythm.paused(210.0)
    rhythm.within.extend([1.0] * 2000)  # and steps do not wash it away
    assert rhythm.threshold(**given) == 630.0
