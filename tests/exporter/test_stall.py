"""The stall watch with a clock that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.watching.stall import StallWatch

SETTINGS = ExporterSettings(stall_floor_seconds=30, stall_start_seconds=1800, stall_factor=3)


def training(
    seconds: float, steps: int = 10, settings: ExporterSettings = SETTINGS
) -> tuple[StallWatch, float]:
    """Return a watch after `steps` steps of `seconds` each, and the time of the last step."""
    watch = StallWatch(settings, started=1000.0)
    now = 1100.0
    for step in range(1, steps + 1):
        watch.observe(now, "train", step)
        now += seconds
    return watch, now - seconds


def test_steady_steps_are_not_a_stall_but_silence_is() -> None:
    watch, last = training(20.0)
    assert not watch.check(last + 60.0).stalled
    state = watch.check(last + 60.1)
    assert state.stalled and state.episode == 1 and state.threshold == 60.0
    assert (state.phase, state.step, state.since) == ("train", 10, last)
    assert state.seconds == pytest.approx(60.1)


def test_floor_prevents_false_alarms_of_fast_steps() -> None:
    watch, last = training(0.1, steps=100)
    assert watch.check(last).threshold == 30.0
    assert not watch.check(last + 29.0).stalled
    assert watch.check(last + 31.0).stalled


def test_run_can_load_for_an_hour() -> None:
    watch, _ = training(1.0, steps=0)
    assert not watch.check(1000.0 + 3600.0).stalled
    assert watch.check(1000.0 + 3601.0).stalled


@pytest.mark.parametrize("steps", [1, 5, 7])
def test_threshold_is_long_before_it_is_learned(steps: int) -> None:
    watch, last = training(1.0, steps=steps)
    assert watch.check(last).threshold == 1800.0
    assert not watch.check(last + 1800.0).stalled
    assert watch.check(last + 1801.0).stalled


@pytest.mark.parametrize(
    ("steps", "seconds", "threshold"),
    [(7, 0.3, 1800.0), (8, 0.3, 84.0), (30, 0.3, 84.0), (90, 0.25, 84.0), (102, 0.3, 30.0)],
)
def test_documented_number_of_steps_is_right(steps: int, seconds: float, threshold: float) -> None:
    """README.md, README.zh.md and docs/stalls.md contain these numbers."""
    watch, last = training(seconds, steps=0)[0], 0.0
    watch.learnt.log_only = True
    for step in range(1, steps + 1):
        last = 1100.0 + step * seconds
        watch.observe(last, "train", step)
    assert watch.check(last).threshold == threshold


def test_slow_start_does_not_count_for_the_threshold() -> None:
    watch = StallWatch(SETTINGS, started=0.0)
    watch.observe(900.0, "train", 1)
    for step in range(2, 10):
        watch.observe(900.0 + step, "train", step)
    assert watch.thresholds["train"] == 30.0


def test_repeatedly_restarted_ranks_can_load_for_an_hour() -> None:
    watch = StallWatch(SETTINGS, started=0.0)
    now = 0.0
    for _ in range(3):
        for seconds in (2.0, 10.0, 0.1):  # the launcher, then one rank after the other
            now += seconds
            watch.observe(now, "init")
        now += 100.0
        watch.observe(now, "train", 1)
        watch.observe(now + 5.0, "init")
        now += 5.0
    assert watch.check(now).threshold == 3600.0


def test_evaluation_has_its_own_threshold() -> None:
    watch, now = training(1.0)
    watch.observe(now, "eval")
    assert not watch.check(now + 600.0).stalled
    watch.observe(now + 600.0, "train", 11)
    assert watch.thresholds["train"] == 30.0  # the evaluation did not raise the threshold for steps
    assert watch.check(now + 631.0).stalled


def test_evaluation_durations_are_learned() -> None:
    watch, now = training(1.0)
    for _ in range(5):
        watch.observe(now, "eval")
        watch.observe(now + 100.0, "train")
        now += 101.0
    watch.observe(now, "eval")
    assert watch.check(now).threshold == 300.0
    assert watch.check(now + 301.0).stalled


def test_recovery_closes_a_stall() -> None:
    watch, now = training(1.0)
    assert watch.check(now + 40.0).episode == 1
    assert watch.check(now + 50.0).episode == 1
    watch.observe(now + 60.0, "train", 11)
    assert not watch.check(now + 61.0).stalled
    assert watch.thresholds["train"] == 90.0  # 1.5 times the pause from which the run recovered
    assert not watch.check(now + 150.0).stalled
    assert watch.check(now + 151.0).episode == 2


def test_regular_pauses_raise_the_threshold() -> None:
    watch, now = training(1.0)
    for step, (seconds, stalled) in enumerate([(200.0, True), (250.0, False), (240.0, False)]):
        now += seconds
        assert watch.check(now).stalled is stalled
        watch.observe(now, "train", 11 + step)
    assert watch.thresholds["train"] == 750.0


def test_first_interval_of_a_log_can_contain_a_rollout() -> None:
    watch, last = training(20.0, steps=1)
    watch.learnt.log_only = True
    watch.observe(last, "train", 1)
    assert watch.check(last).threshold == 4 * 1800.0
    watch.observe(last + 300.0, "train", 2)
    assert watch.check(last + 300.0).threshold == 1800.0


def test_early_pause_of_a_log_triples_the_threshold() -> None:
    watch = StallWatch(SETTINGS, started=0.0)
    watch.learnt.log_only = True
    for step, now in enumerate([10.0, 20.0, 30.0, 40.0], start=1):
        watch.observe(now, "train", step)
    assert watch.check(2040.0).stalled
    watch.observe(2040.0, "train", 5)
    assert watch.check(2040.0).threshold == 6000.0
    assert watch.check(2040.0).learning


def test_short_log_has_a_threshold_of_nearly_three_floors() -> None:
    """Lines every 14 seconds, then an evaluation of 36 seconds without a line: seen in a healthy run."""
    watch, last = training(2.0, steps=9)
    watch.learnt.log_only = True
    watch.observe(last + 2.0, "train", 10)
    assert watch.check(last + 2.0).threshold == 84.0
    assert watch.check(last + 2.0).learning
    for step in range(11, 17):
        watch.observe(last + 2.0 * (step - 9), "train", step)
    assert watch.check(last + 14.0).threshold == 30.0
    assert not watch.check(last + 14.0).learning
    watch, last = training(2.0, steps=9)  # ranks with a probe report their evaluations
    assert watch.check(last).threshold == 30.0


def test_quiet_log_after_an_evaluation_can_be_training() -> None:
    watch, now = training(100.0)
    watch.learnt.log_only = True
    for _ in range(6):
        watch.observe(now, "eval")
        watch.observe(now + 10.0, "save")
        watch.observe(now + 20.0, "train")
        now += 120.0
    watch.observe(now, "eval")
    assert watch.check(now).threshold == watch.thresholds["train"] == 300.0


def evaluated(steps: int, *, result_only: bool) -> float:
    """Return the threshold `steps` steps of 10 s after the third evaluation, each after ten steps."""
    watch, now = training(10.0)
    watch.learnt.log_only = True
    for _ in range(3):
        for step in range(9):
            now += 10.0 + step % 3
            watch.observe(now, "train")
        now += 70.0 if result_only else 0.1
        watch.observe(now, "eval")
        now += 20.0 if result_only else 90.0
        watch.observe(now, "train")
    for _ in range(steps - 1):
        now += 10.0
        watch.observe(now, "train")
    return watch.check(now).threshold


def test_next_evaluation_in_a_log_can_take_longer() -> None:
    thresholds = [evaluated(steps, result_only=True) for steps in range(1, 14)]
    assert thresholds[8:11] == [SETTINGS.stall_start_seconds] * 3
    assert max(thresholds[:8] + thresholds[12:]) < 300.0
    assert max(evaluated(steps, result_only=False) for steps in (9, 10, 11)) < 300.0


@pytest.mark.parametrize("asked", [True, False])
def test_threshold_does_not_depend_on_earlier_queries(asked: bool) -> None:
    """A log shows every tenth step: known at the second such line, whatever came between the two."""
    watch = StallWatch(SETTINGS, started=1000.0)
    for now, phase, step in ((1060.0, "train", 10), (1120.0, "eval", None), (1160.0, "train", 20)):
        watch.observe(now, phase, step)  # type: ignore[arg-type]
        if asked:
            watch.check(now)
    assert watch.check(1161.0).threshold == 4 * 1800.0


def test_suspended_watch_reports_no_stall() -> None:
    watch, now = training(1.0)
    watch.pause(3600.0)
    assert not watch.check(now + 3610.0).stalled
    assert watch.check(now + 3631.0).stalled


def test_earlier_run_is_judged_by_its_last_sign_of_life() -> None:
    watch = StallWatch(SETTINGS, started=5000.0)
    watch.observe(5000.0, "train", 77)
    watch.take_over({"train": [20.0] * 9, "eval": [9.0]}, last_sign=4000.0)
    assert not watch.check(4060.0).stalled
    state = watch.check(4061.0)
    assert state.stalled and state.step == 77 and state.threshold == 60.0


@given(
    st.lists(st.floats(0.01, 100.0), min_size=5, max_size=60),
    st.floats(0.0, 300.0),
)
def test_stall_begins_exactly_at_the_threshold(durations: list[float], quiet: float) -> None:
    watch = StallWatch(SETTINGS, started=0.0)
    now = 10.0
    watch.observe(now, "train", 0)
    for step, seconds in enumerate(durations, start=1):
        assert not watch.check(now + min(seconds, 29.0)).stalled
        now += seconds
        watch.observe(now, "train", step)
    state = watch.check(now + quiet)
    assert state.threshold >= 30.0
    assert state.stalled == (state.seconds > state.threshold)
    assert state.threshold <= max(1800.0, 3 * max(durations)) + 1e-3


@given(st.lists(st.sampled_from(["step", "eval", "wait", "check"]), max_size=60))
def test_episodes_count_stalls_that_began(events: list[str]) -> None:
    watch, now = training(1.0)
    begun, before = 0, False
    for event in events:
        if event == "wait":
            now += 500.0
        elif event in ("step", "eval"):
            watch.observe(now, "train" if event == "step" else "eval")
            before = False
        state = watch.check(now)
        begun += state.stalled and not before
        before = state.stalled
        assert state.episode == begun
