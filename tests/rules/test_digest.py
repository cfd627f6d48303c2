"""Ranks as ranges, durations and times as people read them."""

from __future__ import annotations

import pytest

from stallwatch_rules.digest import fold_ranks, parse_iso, short_duration
from stallwatch_rules.reported import iso


@pytest.mark.parametrize(
    ("ranks", "folded"),
    [
        ([], ""),
        ([7], "7"),
        ([0, 1], "0, 1"),
        ([0, 1, 2, 3, 8], "0–3, 8"),
        ([8, 3, 1, 2, 0, 8], "0–3, 8"),
        ([0, 2, 3, 5, 6, 7], "0, 2, 3, 5–7"),
    ],
)
def test_neighbours_fold_into_ranges(ranks: list[int], folded: str) -> None:
    assert fold_ranks(ranks) == folded


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.213, "0.21 s"), (4.26, "4.3 s"), (412.4, "412 s"), (1800, "30 min"), (9000, "2.5 h")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert short_duration(seconds) == text


def test_times_survive_the_way_through_iso() -> None:
    assert parse_iso(iso(1795217803.25) or "") == 1795217803.25
    assert iso(None) is None
    assert iso(1e300) is None
