"""Pauses of the machine are measured by late ticks of a clock."""

from __future__ import annotations

from typing import Any

import pytest


def test_late_tick_counts_as_a_suspended_machine(standing: Any) -> None:
    for moment in (0.05, 0.1, 0.3):
        standing.tick(moment)
    assert standing.seconds(0.35) == 0.0
    standing.tick(5.3)
    assert standing.seconds(5.3) == pytest.approx(4.75)
    assert standing.seconds(7.3) == pytest.approx(4.75 + 1.75), "also before the tick that is late has come"
    standing.tick(7.3)
    assert standing.seconds(7.35) == pytest.approx(6.5)


def test_slow_answer_is_ignored(standing: Any) -> None:
    """A slow server does not delay the ticks."""
    for tick in range(1, 600):
        standing.tick(tick / 10)
    assert standing.seconds(60.0) == 0.0
