"""The beginning and the end of NaN losses, from the log or the probe."""

from __future__ import annotations

import math

import pytest

from stallwatch_rules.judgements.nan_losses import GOOD, SEVERAL, NanLosses

NAN = math.nan


@pytest.mark.parametrize("others", [1, 3])
def test_nan_ends_although_one_counter_ended_with_nan(others: int) -> None:
    watched = NanLosses()
    news = [watched.see("gone", NAN) for _ in range(SEVERAL)]
    news += [watched.see(other, 0.5) for _ in range(3 * GOOD) for other in range(others)]
    assert [each for each in news if each] == ["began", "over"]


def test_nan_lasts_while_a_rare_counter_is_nan() -> None:
    watched = NanLosses()
    news = [
        watched.see(counter, loss)
        for number in range(1000)
        for counter, loss in ([("each", 0.5)] + [("seldom", NAN)] * (number % 50 == 0))
    ]
    assert [each for each in news if each] == ["began"]
