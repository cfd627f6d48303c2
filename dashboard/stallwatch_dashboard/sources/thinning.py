"""Fewer points of the same course: of each span of time the lowest, the highest and the first that is NaN.

Spans are cells of 2ⁿ seconds that start at multiples of their width since 1970. So cells of one width lie
whole in the cells of the next, the earlier points of a growing series are always cut the same way, and what
is thinned twice is what one thinning to the wider cells gives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NARROWEST = 2.0**-10  #: seconds


@dataclass(frozen=True)
class Points:
    """Points of several series, as columns of one length."""

    series: NDArray[np.int64]
    t: NDArray[np.float64]  #: Unix seconds
    v: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.t)

    def at(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> Points:
        """Some of them."""
        return Points(self.series[which], self.t[which], self.v[which])


def nothing() -> Points:
    """No points."""
    return Points(np.empty(0, "int64"), np.empty(0), np.empty(0))


def joined(*parts: Points) -> Points:
    """One after the other."""
    series, t, v = (np.concatenate([getattr(part, name) for part in parts]) for name in ("series", "t", "v"))
    return Points(series, t, v)


def in_order(points: Points) -> Points:
    """By series and time; of several at one moment the last counts."""
    points = points.at(np.lexsort((points.t, points.series)))
    if not len(points):
        return points
    last = np.ones(len(points), bool)
    last[:-1] = (points.series[1:] != points.series[:-1]) | (points.t[1:] != points.t[:-1])
    return points.at(last)


def cell_width(span: float, lines: int, most: int) -> float:
    """Seconds of a cell, so that `lines` series over `span` seconds come to about `most` points at most."""
    cells = max(1, most // (2 * lines) - 1)
    return float(2.0 ** math.ceil(math.log2(max(span / cells, _NARROWEST))))


def thinned(points: Points, most: int) -> Points:
    """About `most` at most, and half as many at least where there were so many. `points` must be in order."""
    if not len(points):
        return points
    begins = np.ones(len(points), bool)
    begins[1:] = points.series[1:] != points.series[:-1]
    width = cell_width(float(np.ptp(points.t)), int(begins.sum()), most)
    cells = np.floor(points.t / width)
    begins[1:] |= cells[1:] != cells[:-1]
    starts = np.flatnonzero(begins)
    group = np.cumsum(begins) - 1
    unknown = np.isnan(points.v)
    kept = np.zeros(len(points), bool)
    for reduce, worst in ((np.minimum, np.inf), (np.maximum, -np.inf)):
        values = np.where(unknown, worst, points.v)
        kept[_first(values == reduce.reduceat(values, starts)[group], group, ~unknown)] = True
    kept[_first(unknown, group, unknown)] = True
    return points.at(kept)


def _first(
    wanted: NDArray[np.bool_], group: NDArray[np.intp], allowed: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """The place of the first wanted point of each group that has one."""
    places = np.flatnonzero(wanted & allowed)
    return places[np.unique(group[places], return_index=True)[1]]
