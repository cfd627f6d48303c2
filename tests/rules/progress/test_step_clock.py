from __future__ import annotations

from stallwatch_rules.progress.timeline import Interval, StepClock, Timeline


def clock_of(*steps: int | None) -> StepClock:
    timeline = Timeline()
    timeline.intervals = [Interval(1, step, 100.0 + at, None, {}) for at, step in enumerate(steps)]
    return StepClock(timeline)


def test_last_step_before_a_time_is_known() -> None:
    assert [clock_of(0, 1, 2).at(moment) for moment in (99.0, 100.5, 110.0)] == [None, 0, 2]


def test_losses_without_step_numbers_count_as_steps() -> None:
    clock = clock_of(None, None, None)
    assert clock.at(110.0) is None
    assert clock.after(100.5) == 2
