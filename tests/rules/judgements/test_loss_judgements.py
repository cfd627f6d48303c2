"""Losses that diverge, jump or freeze, and zero gradients: pure functions of points."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from stallwatch_rules.judgements.facts import RunFacts
from stallwatch_rules.judgements.loss import (
    NEAR_THE_END,
    is_excerpt,
    judge_divergence,
    judge_frozen,
    judge_spike,
    judge_zero_gradients,
    last_run,
)
from stallwatch_rules.judgements.loss_scale import judge_falling_scale, judge_skipped
from stallwatch_rules.locale import render
from stallwatch_rules.progress.curve import Point

GOES_ON = RunFacts(advances=100)
WOBBLE = (0.013, -0.021, 0.008, 0.017, -0.011, -0.004, 0.02, -0.016, 0.005, -0.009)


def curve(
    losses: Sequence[float | None],
    norms: Sequence[float | None] | Callable[[int], float | None] = lambda _: 1.0,
    *,
    first: int = 1,
    rate: float = 1e-5,
    numbered: bool = True,
) -> list[Point]:
    norm = norms if callable(norms) else norms.__getitem__
    return [
        Point(float(first + i) if numbered else None, loss, norm(i), rate, None, i + 1)
        for i, loss in enumerate(losses)
    ]


def falling(count: int, start: float = 2.4, end: float = 0.9) -> list[float]:
    """A healthy loss."""
    return [end + (start - end) * math.exp(-i / 12) + WOBBLE[i % 10] for i in range(count)]


def diverged(points: Sequence[Point], *, nan: bool = False, rewarded: bool = False) -> str | None:
    judgement = judge_divergence(points, nan_follows=nan, rewarded=rewarded)
    return judgement and judgement.harm


def test_loss_that_rose_and_stayed_has_diverged() -> None:
    high = [7.0 + wobble for wobble in WOBBLE] * 2
    assert diverged(curve(falling(60) + high)) == "degrading"
    assert diverged(curve(falling(60) + high), nan=True) == "fatal"
    assert diverged(curve(falling(60) + high[:8])) is None, "not yet for long enough"


def test_successive_runs_in_a_file_are_separated() -> None:
    begun, high = falling(60, start=7.0), [7.0 + wobble for wobble in WOBBLE] * 3
    runs = curve(begun) + curve(high)
    assert diverged(runs) == "degrading" and diverged(last_run(runs)) is None
    epochs = [
        point._replace(epoch=float(epoch))
        for epoch in (1, 2)
        for point in runs[60 * (epoch - 1) : 60 * epoch]
    ]
    for one_run in (
        epochs,
        curve(begun) + curve(high, first=25),  # resumed at an earlier checkpoint
        curve(begun) + curve([9.9 + wobble for wobble in WOBBLE] * 3),  # no such loss at the beginning
        curve(begun) + curve([0.9] * 30 + high),
    ):
        assert last_run(one_run) == one_run and diverged(one_run) == "degrading"


def test_second_run_on_other_data_has_not_diverged() -> None:
    other = curve(falling(60, start=1.8, end=0.9))
    runs = curve(falling(60, start=0.5, end=0.1)) + other
    assert diverged(runs) == "degrading" and last_run(runs) == other
    away = curve(falling(60, start=0.5, end=0.1)) + curve([1.8 + wobble for wobble in WOBBLE] * 3)
    assert last_run(away) == away, "what ran away does not learn again"


def test_second_run_that_begins_without_finite_losses_is_not_separated() -> None:
    again = curve(falling(60)) + curve([math.nan] * 10 + falling(60))
    assert last_run(again) == again


def test_slow_rise_is_a_divergence() -> None:
    rise = [1.0 + 0.05 * i + WOBBLE[i % 10] for i in range(80)]
    assert diverged(curve(falling(40) + rise)) == "degrading"


@pytest.mark.parametrize(
    "losses",
    [
        falling(200),
        [9.9, 5.0, *falling(60)],  # high only at first
        [0.69, 0.31, 1.42, 0.22, 0.87, 1.66, 0.41] * 20,  # noise
        [0.05, 0.02, 0.04, 0.01] * 10 + [0.09, 0.08, 0.07] * 5,  # small losses vary by multiples
        [*falling(60), 9.0, *falling(20, 0.95)],  # came back
        [-0.02, 0.03, -0.01] * 20,  # a policy's loss is no likelihood
    ],
)
def test_healthy_losses_have_not_diverged(losses: list[float]) -> None:
    assert diverged(curve(losses)) is None


def test_few_values_must_rise_more() -> None:
    cut = [2.87, 2.86, 2.87, 4.93, 6.52, 7.03, 7.01]
    assert diverged(curve(cut, first=8120)) == "degrading"
    assert diverged(curve([2.87, 2.86, 2.87, 4.1, 4.2, 4.15], first=8120)) is None
    assert diverged(curve(cut, first=8120), rewarded=True) is None
    assert diverged(curve(cut)) is None, "a run's first seven values are no baseline"
    seldom = [Point(25.0 * item.mark, item.loss, None, None, None, item.mark) for item in curve(cut)]
    assert diverged(seldom) == "degrading", "but are where each stands for many steps"


def spiked(points: Sequence[Point]) -> bool:
    return judge_spike(points) is not None


def test_jump_at_the_end_is_a_spike() -> None:
    assert spiked(curve([*falling(40), 8.4]))
    assert spiked(curve([*falling(40), 8.4, 5.0, 2.0]))
    assert spiked(curve([*falling(40), 8.4, *falling(NEAR_THE_END - 1, 0.95)]))
    assert not spiked(curve([*falling(40), 8.4, *falling(NEAR_THE_END, 0.95)]))


def test_note_says_whether_the_loss_recovers() -> None:
    there = judge_spike(curve([*falling(40), 8.4, 8.1]))
    back = judge_spike(curve([*falling(40), 8.4, 1.0]))
    assert there is not None and "step 41" in render(there.note) and "is recovering" not in render(there.note)
    assert back is not None and "is recovering" in render(back.note)


def test_spike_must_exceed_all_limits() -> None:
    assert not spiked(curve([*falling(40), 1.7]))
    assert not spiked(curve([0.02 + w / 10 for w in WOBBLE] * 4 + [0.3]))
    assert not spiked(curve([*[1.0, 4.0, 1.2, 0.9] * 10, 4.5]))


def test_spike_in_an_excerpt_needs_further_evidence() -> None:
    losses = [3.14, 3.2, 7.9]
    assert spiked(curve(losses, [13.0, 270.0, 261.0], first=22645))
    assert not spiked(curve(losses, [13.0, 14.0, 15.0], first=22645))
    assert spiked(curve([3.1, 3.2, 3.15, 7.9], lambda _: None, first=22645))
    assert spiked(curve(losses[1:], [13.0, 270.0], first=22645))
    assert not spiked(curve(losses, [13.0, 270.0, 261.0])), "the first steps of a run jump"


def test_extreme_loss_needs_no_further_evidence() -> None:
    assert spiked(curve([1.2, 1.18, 153318.95, 1.3, 1.2], lambda _: None))
    assert not spiked(curve([1.2, 1.18, 9.5, 1.3, 1.2], lambda _: None))


def test_log_that_begins_at_the_first_steps_is_not_an_excerpt() -> None:
    assert is_excerpt(curve([1.0, 1.0], first=22645))
    assert not is_excerpt(curve([1.0, 1.0], first=1))
    assert not is_excerpt([Point(10.0 * i, 1.0, None, None, None, i) for i in (1, 2)])
    assert not is_excerpt(curve([1.0, 1.0], numbered=False))


def frozen(points: Sequence[Point], unlogged: int = 0) -> bool:
    return judge_frozen(points, unlogged, GOES_ON) is not None


@pytest.mark.parametrize(("loss", "enough"), [(1.31482, 5), (0.6731, 30), (0.69, 200)])
def test_frozen_loss_with_fewer_digits_needs_more_values(loss: float, enough: int) -> None:
    assert frozen(curve(falling(10) + [loss] * enough))
    assert not frozen(curve(falling(10) + [loss] * (enough - 1)))
    assert not frozen(curve(falling(10) + [loss] * enough, numbered=False)), "ranks may repeat each other"


def test_rounded_small_loss_is_not_frozen() -> None:
    begun = [5.666, 2.204, 0.918, 0.214, 0.041]
    assert not frozen(curve(begun + [0.002] * 300))
    assert frozen(curve(begun + [0.23] * 300))
    assert frozen(curve([0.5] * 300)), "it never was another"


def test_repeated_printing_of_a_loss_is_not_frozen() -> None:
    again = [loss for loss in (39.2107, 39.1297, 39.0713) for _ in range(100)]
    assert not frozen(curve([*again, *[39.1784] * 299]))
    assert frozen(curve([*again, *[39.1784] * 300]))


def test_constant_loss_without_steps_is_frozen() -> None:
    assert frozen(curve([0.693147] * 12, numbered=False))
    assert not frozen(curve([0.693147] * 11, numbered=False)), "ranks may repeat each other"
    assert not frozen(curve([0.7, *[0.693147] * 12], numbered=False))


def test_preference_training_without_reward_margin_is_frozen() -> None:
    points = [point._replace(margin=0.0) for point in curve([0.6931] * 10)]
    assert frozen(points)
    assert not frozen(points[1:]), "it begins there"
    assert not frozen([*points[1:], points[0]._replace(margin=1e-4)])


def test_loss_at_chance_level_is_frozen() -> None:
    guessing = [3.0447, 3.0446, 3.0447, 3.0445] * 3  # ln 21 = 3.04452
    assert frozen(curve(guessing, first=490))
    assert frozen(curve([2.9, 2.8, 2.8, 2.9, *guessing], numbered=False))
    assert not frozen(curve([2.9, *guessing], numbered=False)), "settling at its beginning"
    assert not frozen(curve(guessing, first=1)), "a run's first losses are those of guessing"
    assert not frozen(curve(guessing[1:], first=490)), "too few"
    assert not frozen(curve([*guessing[1:], 3.05], first=490))
    assert not frozen(curve([loss + 0.01 for loss in guessing], first=490)), "no number of classes"
    assert not frozen(curve([0.693, 0.694] * 6, first=490)), "too few digits to tell"


def test_loss_that_passes_chance_level_is_not_frozen() -> None:
    guessing, before = [1.0988, 1.0986, 1.0985] * 4, [1.5 - 0.05 * i for i in range(8)]  # ln 3 = 1.0986
    assert frozen(curve(before + guessing))
    assert not frozen(curve(before + [1.0986] * 16, numbered=False)), "ranks may repeat each other"
    assert not frozen(curve([2.5 - 0.1 * i for i in range(10)] + [1.386] * 14)), "few digits round alike"
    assert not frozen(curve(before + [1.0988 - 2e-5 * i for i in range(12)])), "smoothed, and falling"
    assert judge_frozen(curve(before + guessing), 0, GOES_ON, rewarded=True) is None
    rising, gone = (
        [point._replace(learning_rate=rate(point.mark)) for point in curve(before + guessing)]
        for rate in (lambda mark: 1e-9 * mark, lambda mark: 1e-5 * (20 - mark) / 200 if mark > 8 else 1e-5)
    )
    assert not frozen(rising) and not frozen(gone)


def test_zeros_of_skipped_steps_are_not_frozen() -> None:
    skipped = curve([0.0] * 9, lambda _: 0.0)
    assert judge_frozen(skipped, 0, GOES_ON, zero_is_odd=True) is not None
    assert judge_frozen(skipped, 0, GOES_ON, zero_is_odd=True, overflowed=True) is None


def test_zero_and_nan_are_not_frozen() -> None:
    assert not frozen(curve([0.0] * 300))
    assert not frozen(curve([math.nan] * 300))


def test_unexplained_zero_loss_is_reported() -> None:
    def odd(points: Sequence[Point]) -> bool:
        return judge_frozen(points, 0, GOES_ON, zero_is_odd=True) is not None

    assert odd(curve([0.0] * 10, lambda _: None))
    assert not odd(curve([0.0] * 9, lambda _: None))
    assert not odd(curve([0.0] * 10)), "gradients flow"


def test_loss_repeated_by_a_bar_is_not_frozen() -> None:
    points = curve([*falling(10), *[1.31482] * 60])
    assert frozen(points)
    assert judge_frozen(points, 0, GOES_ON, bar=True) is None


def test_loss_that_is_no_longer_printed_is_reported() -> None:
    points = [Point(float(i), 2.0 - i * 0.01, None, None, None, 10 * i) for i in range(1, 11)]
    assert not frozen(points, unlogged=20)
    assert not frozen(points, unlogged=200)
    assert frozen(points, unlogged=201)
    assert judge_frozen(points, 201, RunFacts(complete=True)) is None


def zeros(
    points: Sequence[Point], *, exact: bool = True, rewarded: bool = False, overflowed: bool = False
) -> bool:
    judged = judge_zero_gradients(points, exact=exact, rewarded=rewarded, overflowed=overflowed)
    return judged is not None


def test_zero_gradients_without_learning_are_reported() -> None:
    assert zeros(curve(falling(3), lambda _: 0.0, rate=0.0))
    assert zeros(curve([1.8712] * 3, lambda _: 0.0))
    assert not zeros(curve(falling(1), lambda _: 0.0, rate=0.0))
    assert not zeros(curve([1.8712] * 2, lambda _: 0.0))
    assert not zeros(curve(falling(6), lambda _: 0.0)), "a norm that is printed as 0.000"
    assert not zeros(curve(falling(6), lambda _: 0.0, rate=0.0), exact=False), "a rate that is, too"


def test_zero_gradients_with_constant_losses_are_reported() -> None:
    noisy = [1.8234, 1.8101, 1.8399, 1.8250, 1.8288]
    assert zeros(curve(noisy, lambda _: 0.0))
    assert zeros(curve(noisy * 4, lambda _: 0.0))
    assert not zeros(curve(noisy[:3], lambda _: 0.0))
    assert not zeros(curve(noisy, lambda _: 0.0), exact=False), "a norm that is printed as 0.000"
    assert not zeros(curve(noisy, lambda _: 0.0), rewarded=True)
    assert not zeros(curve([loss - 0.05 * i for i, loss in enumerate(noisy * 4)], lambda _: 0.0))


def test_normal_zero_gradients_are_not_reported() -> None:
    assert not zeros(curve([0.0] * 9, lambda _: 0.0))
    assert not zeros(curve([0.5] * 9, lambda _: 0.0), rewarded=True)
    assert not zeros(curve(falling(9), lambda i: 0.0 if i < 3 else 1.0, rate=0.0))
    assert not zeros(curve(falling(9), lambda _: 0.0, rate=0.0), overflowed=True)
    assert zeros(curve(falling(50), lambda _: 0.0, rate=0.0), overflowed=True)


def test_later_zero_gradients_need_more_steps() -> None:
    assert not zeros(curve([1.0, *[0.7] * 9], lambda i: 1.0 if i < 1 else 0.0))
    assert zeros(curve([1.0, *[0.7] * 10], lambda i: 1.0 if i < 1 else 0.0))


def test_falling_loss_scale_is_reported() -> None:
    steady = [65536.0] * 30
    falls = [32768.0, 16384.0, 8192.0, 4096.0]
    assert judge_falling_scale(steady + falls, GOES_ON) is not None
    assert judge_falling_scale(steady + falls[:3], GOES_ON) is None
    assert judge_falling_scale([*steady, *falls, 8192.0], GOES_ON) is None, "it rose again"
    assert judge_falling_scale([65536.0, *falls], GOES_ON) is None, "how the scale is found"
    assert judge_falling_scale([65536.0, *falls], GOES_ON, excerpt=True) is not None
    assert judge_falling_scale([None] * 9, GOES_ON) is None


@pytest.mark.parametrize(
    ("first", "last", "harm"),
    [
        ((10.0, 10), (70.0, 70), "fatal"),
        ((0.0, 0), (12.0, 12), None),  # how the scale is found
        ((10.0, 10), (12.0, 200), None),
        ((900.0, 910), (900.0, 970), None),  # of the attempt before
        ((20.0, 10), (900.0, 70), None),  # of something else
        (None, None, None),
    ],
)
def test_skipped_steps_counted_by_the_engine_are_judged(
    first: tuple[float, int] | None, last: tuple[float, int] | None, harm: str | None
) -> None:
    """DeepSpeed's ``step=70, skipped=70, lr=[1e-05]``, where no line says that a step overflowed."""
    judgement = judge_skipped(first, last, [*WOBBLE, *WOBBLE, *WOBBLE[5:]], GOES_ON)
    assert (judgement and judgement.harm) == harm
    assert judge_skipped(first, last, falling(60), GOES_ON) is None


def test_noisy_losses_raise_no_alarm() -> None:
    """Log-normal noise of many widths and lengths, as preference losses and single batches have it."""
    chance = random.Random(7)
    alarms = 0
    for _ in range(400):
        width, count = chance.uniform(0.05, 0.8), chance.choice((9, 20, 40, 100))
        losses = [0.7 * math.exp(chance.gauss(0, width)) for _ in range(count)]
        points = curve(losses, lambda _: math.exp(chance.gauss(0, 0.3)), first=chance.choice((1, 5000)))
        alarms += spiked(points) or diverged(points) is not None
    assert alarms <= 4
