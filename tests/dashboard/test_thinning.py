"""Thinning keeps the shape of a series, however often and in whatever portions it runs."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stallwatch_dashboard.data.cache import Points, in_order, of_rows, thinned

_VALUES = st.sampled_from([0.0, 1.0, 1.0, 2.0, -3.5, math.nan, math.inf])
_POINTS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4000), _VALUES), max_size=300)


def points(rows: list[tuple[int, float, float]]) -> Points:
    return in_order(of_rows([(series, t + 1_795_000_000.25, v) for series, t, v in rows]))


def rows(found: Points) -> list[str]:
    return [str(row) for row in zip(found.series, found.t, found.v, strict=True)]


@given(_POINTS)
def test_thinning_is_idempotent(found: list[tuple[int, float, float]]) -> None:
    every = points(found)
    assert rows(thinned(thinned(every, 80), 20)) == rows(thinned(every, 20))


@given(_POINTS)
def test_thinning_keeps_peaks_gaps_and_every_series(found: list[tuple[int, float, float]]) -> None:
    every = points(found)
    few = thinned(every, 20)
    assert set(rows(few)) <= set(rows(every))
    for series in set(every.series):
        whole, kept = every.v[every.series == series], few.v[few.series == series]
        assert np.isnan(whole).any() == np.isnan(kept).any()
        if not np.isnan(whole).all():
            assert (np.nanmin(whole), np.nanmax(whole)) == (np.nanmin(kept), np.nanmax(kept))


def test_number_of_thinned_points_is_bounded() -> None:
    for many in (2000, 10_000, 77_777):
        every = points([(n % 2, n, float(n * 7 % 13)) for n in range(many)])
        assert 250 <= len(thinned(every, 1000)) <= 1000


def test_thinning_handles_zero_and_one_point() -> None:
    assert len(thinned(of_rows(()), 10)) == 0
    assert rows(thinned(points([(1, 5, 2.0)]), 10)) == rows(points([(1, 5, 2.0)]))


def test_last_of_two_points_at_the_same_time_is_kept() -> None:
    assert points([(1, 5, 2.0), (1, 5, 3.0), (1, 4, 9.0)]).v.tolist() == [9.0, 3.0]
