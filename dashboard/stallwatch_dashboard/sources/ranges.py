"""Answers about a span of time that ends now, kept so that a refresh asks only for what came since.

Moments lie at multiples of a width of 2ⁿ seconds since 1970: however the span grows, those that were asked
for stay the right ones until the width doubles. Then all is asked for anew.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = tuple[tuple[str, str], ...]
Floats = NDArray[np.float64]
Points = tuple[Floats, Floats]  #: Unix seconds, and the values then
Ask = Callable[[str, float, float, float], "list[Any] | None"]  #: question, start, end, width

_LATE_SECONDS = 60.0  #: a server may get a number so long after its time, and is asked for that again
_SAME_SECONDS = 0.5  #: so long an answer is as good as a new one: a page asks the same for many of its lines
_MOST_KEPT = 256  #: questions: those of some dozen pages


@dataclass(frozen=True)
class _Told:
    first: float
    width: float
    until: float
    points: dict[Labels, Points]


class Ranges:
    """Safe for several threads."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._kept: dict[str, _Told] = {}

    def points(self, question: str, start: float, end: float, moments: int) -> dict[Labels, Points]:
        """Of each series its points between the two times, at most so many; none without an answer."""
        width = max(1.0, 2.0 ** math.ceil(math.log2(max(end - start, 1.0) / moments)))
        first = math.ceil(start / width) * width
        with self._lock:
            kept = self._kept.get(question)
        if kept is None or (kept.first, kept.width) != (first, width) or kept.until > end:
            kept = _Told(first, width, first, {})
        elif end - kept.until < _SAME_SECONDS:
            return kept.points
        begin = max(first, math.floor((kept.until - _LATE_SECONDS) / width) * width)
        if end < begin:  # not one moment yet
            return {}
        found = self._ask(question, begin, end, width)
        if found is None:
            return {}
        points = {labels: _before(told, begin) for labels, told in kept.points.items()}
        for one in found:
            labels = tuple(sorted(one["metric"].items()))
            points[labels] = _joined(points.get(labels), one["values"])
        with self._lock:
            self._kept.pop(question, None)
            self._kept[question] = _Told(first, width, end, points)  # the last one asked for stays longest
            while len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return points


def _before(points: Points, end: float) -> Points:
    until = int(np.searchsorted(points[0], end))
    return points[0][:until], points[1][:until]


def _joined(points: Points | None, values: list[Any]) -> Points:
    """With the points of an answer, whose values are written as text ("NaN" and "+Inf" among them)."""
    times = np.array([at for at, _ in values], "float64")
    numbers = np.array([float(text) for _, text in values], "float64")
    if points is None or not len(points[0]):
        return times, numbers
    return np.concatenate([points[0], times]), np.concatenate([points[1], numbers])
