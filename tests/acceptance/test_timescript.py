"""Pauses of the machine are measured by late ticks of a clock."""

from __future__ import annotations

from typing import Any

import pytest


def test_late_tick_counts_as_a_suspended_machine(pauses: Any) -> None:
    for moment in (0.05, 0.1, 0.3):
        pauses.tick(moment)
    assert pauses.seconds(0.35) == 0.0
    pauses.tick(5.3)
    assert pauses.seconds(5.3) == pytest.approx(4.75)
    assert pauses.seconds(7.3) == pytest.approx(4.75 + 1.75), "also before the tick that is late has come"
    pauses.tick(7.3)
    assert pauses.seconds(7.35) == pytest.approx(6.5)


def test_slow_answer_is_ignored(pauses: Any) -> None:
    """A slow server does not delay the ticks."""
    for tick in range(1, 600):
        pauses.tick(tick / 10)
    assert pauses.seconds(60.0) == 0.0
