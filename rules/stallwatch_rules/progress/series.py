"""What a run's numbers look like over its steps, from what was kept of each stream: enough for a chart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from stallwatch_rules.progress.curve import Point, leading_curve
from stallwatch_rules.progress.timeline import Timeline
from stallwatch_rules.records import Series
from stallwatch_rules.stream import StreamReading

MOST_POINTS = 400  #: of one series: a chart is not wider
MOST_RANKS = 16  #: with a pace of their own
_LEAST_POINTS = 2
_NUMBERS = ("loss", "grad_norm", "learning_rate", "loss_scale")

_T = TypeVar("_T")


def series_of(streams: Mapping[tuple[str, int | None], StreamReading]) -> list[Series]:
    """The numbers of the stream that prints most of them, and the pace of every rank (of the first 16).

    The order of the streams makes no difference.
    """
    ordered = sorted(streams.items(), key=lambda entry: (entry[0][1] is None, entry[0][1] or 0, entry[0][0]))
    found: list[Series] = []
    lead = leading_curve((key, stream.curves) for key, stream in ordered)
    if lead is not None:
        curve, place = lead
        found += _numbers(curve.points, ordered[place][0][1])
    paced = [(key[1], line) for key, stream in ordered if (line := stream.timelines.main) is not None]
    found += [one for rank, line in paced[:MOST_RANKS] if (one := _pace(line, rank)) is not None]
    return found


def _numbers(points: Sequence[Point], rank: int | None) -> list[Series]:
    found = []
    for name in _NUMBERS:
        told = [
            (float(number) if point.step is None else point.step, value)
            for number, point in enumerate(points)
            if (value := getattr(point, name)) is not None
        ]
        if len(told) >= _LEAST_POINTS:
            found.append(_series(name, rank, told))
    return found


def _pace(timeline: Timeline, rank: int | None) -> Series | None:
    told = [
        (float(interval.step), interval.pace)
        for interval in timeline.intervals
        if interval.step is not None and interval.pace is not None
    ]
    return _series("step_seconds", rank, told) if len(told) >= _LEAST_POINTS else None


def _series(name: str, rank: int | None, told: Sequence[tuple[float, float]]) -> Series:
    kept = thinned(told)
    values = [value if math.isfinite(value) else None for _, value in kept]
    return Series(name, rank, [step for step, _ in kept], values)


def thinned(entries: Sequence[_T], most: int = MOST_POINTS) -> list[_T]:
    """At most so many of them, evenly spread, the first and the last among them."""
    if len(entries) <= most:
        return list(entries)
    last = len(entries) - 1
    return [entries[round(number * last / (most - 1))] for number in range(most)]
