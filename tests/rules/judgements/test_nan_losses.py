"""The beginning and the end of NaN losses, from the log or the probe."""

from __future__ import annotations

import math

import pytest

from stallwatch_rules.judgements.nan_losses import GOOD, SEVERAL, NanLosses

NAN = math.nan


@pytest.mark.parametrize("others", [1, 3])
def test_it_is_over_though_a_counter_ended_while_it_was_bad(others: int) -> None:
    watched = NanLosses()
    news = [watched.see("gone", NAN) for _ in range(SEVERAL)]
    news += [watched.see(other, 0.5) for _ in range(3 * GOOD) for other in range(others)]
    assert [each for each in news if each] == ["began", "over"]


def test_it_is_not_over_while_a_counter_that_comes_seldom_is_bad() -> None:
    watched = NanLosses()
    news = [
        watched.see(counter, loss)
        for number in range(1000)
        for counter, loss in ([("each", 0.5)] + [("seldom", NAN)] * (number % 50 == 0))
    ]
    assert [each for each in news if each] == ["began"]
