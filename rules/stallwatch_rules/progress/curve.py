"""Store the losses, gradient norms, and other metrics of each stream, and derive the data series for charts.

Memory use is bounded. All of the latest points are kept, but only some of the older points. These older
points are evenly spaced, so a curve keeps its shape in a long run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from stallwatch_rules.progress.timeline import Timeline
from stallwatch_rules.records import Sample, Series

if TYPE_CHECKING:
    from stallwatch_rules.stream import StreamReading

LATEST = 256  #: number of latest points; all of these points are kept
OLDER = 1000  #: maximum number of older points
MAX_SERIES = 8
ANEW = 2.0  #: a loss above this multiple of the previous loss shows that a new training run began

#: Maximum epoch at the first loss of a new training run. A resumed run starts at a higher epoch.
FIRST_EPOCH = 1.0
#: Metrics that are stored in separate tracks. A ``Point`` contains the other metrics.
TRACKED = frozenset(
    ("reward", "reward_std", "advantage_min", "advantage_max", "entropy", "kl", "eval_loss", "eval_accuracy")
)
#: Each sample in a curve or track contains at least one of these metrics.
METRICS = TRACKED | {"loss", "grad_norm"}

_T = TypeVar("_T")


class BoundedSeries(Generic[_T]):
    """A sequence of bounded size. It keeps all of the latest entries but only every n-th older entry."""

    def __init__(self) -> None:
        self._older: list[_T] = []
        self.latest: deque[_T] = deque()
        self._added = 0
        self._width = 1  # every n-th older entry is kept, where n is this number

    def __iter__(self) -> Iterator[_T]:
        yield from self._older
        yield from self.latest

    def add(self, entry: _T) -> None:
        self.latest.append(entry)
        self._added += 1
        if len(self.latest) > LATEST:
            oldest = self.latest.popleft()
            if (self._added - 1 - LATEST) % self._width:
                return
            self._older.append(oldest)
            if len(self._older) > OLDER:
                self._older = self._older[::2]
                self._width *= 2

    def clear(self) -> None:
        self._older.clear()
        self.latest.clear()
        self._added, self._width = 0, 1


class Point(NamedTuple):
    """The metrics of one line, with the step or epoch that the line shows."""

    step: float | None  #: the step, or the epoch if the line has no step number
    loss: float | None
    grad_norm: float | None
    learning_rate: float | None
    loss_scale: float | None
    mark: int  #: number of steps that the stream had shown when this line was read
    epoch: float | None = None
    margin: float | None = None  #: reward margin of preference learning

    @property
    def is_nan(self) -> bool:
        """True if the loss or the gradient norm is NaN. Infinite norms are normal in fp16 training."""
        return any(value is not None and math.isnan(value) for value in (self.loss, self.grad_norm))


class Curve:
    """The training metrics in one series of lines, stored as points in the order of the lines."""

    def __init__(self, series: str) -> None:
        self.series = series
        self.seen = 0
        self.rewarded = False  #: True if the lines contain rewards; in this case, zero losses are normal
        self._kept = BoundedSeries[Point]()
        self._epoch: float | None = None

    @property
    def points(self) -> list[Point]:
        """The points that are kept, in chronological order."""
        return list(self._kept)

    @property
    def exact(self) -> bool:
        """True if the log shows numbers at full precision. Lines of text can round values (0 for 1e-5)."""
        return self.series == "dict"

    def see(self, sample: Sample, mark: int) -> None:
        """Add the values of a sample as a point, unless the sample repeats the step of the last point.

        If the epoch numbers restart and the loss jumps up, the lines are from a different training run (a
        fold, a round, or a second start in the same file). In this case, the earlier points are deleted. If
        the epoch numbers restart without such a jump, the training continues with the same weights.
        """
        values = sample.values
        epoch, loss = values.get("epoch"), values.get("loss")
        if epoch is not None and loss is not None:
            if self._begins_anew(epoch, loss):
                self._kept.clear()
            self._epoch = epoch
        step = float(sample.step) if sample.step is not None else epoch
        latest = self._kept.latest
        if step is not None and latest and latest[-1].step == step:
            return
        self.rewarded = self.rewarded or "reward" in values
        norm, rate, scale = map(values.get, ("grad_norm", "learning_rate", "loss_scale"))
        self._kept.add(Point(step, loss, norm, rate, scale, mark, epoch, values.get("reward_margin")))
        self.seen += 1

    def _begins_anew(self, epoch: float, loss: float) -> bool:
        """Return whether the epoch is again near the start and the loss is far above the last loss."""
        if self._epoch is None or epoch > FIRST_EPOCH or epoch >= self._epoch / 2:
            return False
        losses = (point.loss for point in reversed(self._kept.latest) if point.loss is not None)
        last = next((loss for loss in losses if math.isfinite(loss)), None)
        return last is not None and loss > ANEW * max(last, 0.0)


class Reading(NamedTuple):
    """One value of a metric."""

    step: float | None  #: the step, or the epoch if the line has no step number
    value: float
    mark: int  #: number of steps that the stream had shown when this value was read


class Track:
    """The values of one metric over time, from the first series of lines that contains the metric."""

    def __init__(self, series: str) -> None:
        self._series = series
        self._kept = BoundedSeries[Reading]()
        self.seen = 0

    @property
    def readings(self) -> list[Reading]:
        """The values that are kept, in chronological order."""
        return list(self._kept)

    def see(self, sample: Sample, value: float, mark: int) -> None:
        """Add a value, unless the sample has the same step as the last value.

        If the step numbers restart, the older values are deleted.
        """
        if sample.series != self._series:
            return
        step = float(sample.step) if sample.step is not None else sample.values.get("epoch")
        last = self._kept.latest[-1].step if self._kept.latest else None
        if step is not None and last is not None:
            if step == last:
                return
            if step < last / 2:
                self._kept.clear()
        self._kept.add(Reading(step, value, mark))
        self.seen += 1


class Curves:
    """The training metrics of one rank in one source: the curves (by series) and the tracks (by metric)."""

    def __init__(self) -> None:
        self.by_series: dict[str, Curve] = {}
        self.tracks: dict[str, Track] = {}

    def see(self, sample: Sample, mark: int) -> None:
        """Add the metrics of a sample.

        A point is added to a curve only if the sample has a loss or a gradient norm.
        """
        for name in TRACKED & sample.values.keys():
            track = self.tracks.get(name)
            if track is None:
                track = self.tracks[name] = Track(sample.series)
            track.see(sample, sample.values[name], mark)
        if "loss" not in sample.values and "grad_norm" not in sample.values:
            return
        curve = self.by_series.get(sample.series)
        if curve is None:
            if len(self.by_series) >= MAX_SERIES:
                return
            curve = self.by_series[sample.series] = Curve(sample.series)
        curve.see(sample, mark)

    @property
    def main(self) -> Curve | None:
        """The curve with the most points."""
        return max(self.by_series.values(), key=lambda curve: (curve.seen, curve.series), default=None)


def leading_curve(streams: Iterable[tuple[tuple[str, int | None], Curves]]) -> tuple[Curve, int] | None:
    """Return two values: the curve with the most points, and the index of its stream.

    If several curves have the same number of points, the curve of the lowest rank is returned.
    """
    found = [
        (-curve.seen, _by_rank(key), place, curve)
        for place, (key, curves) in enumerate(streams)
        if (curve := curves.main) is not None
    ]
    best = min(found, key=lambda entry: entry[:2], default=None)
    return (best[3], best[2]) if best is not None else None


def _by_rank(key: tuple[str, int | None]) -> tuple[bool, int, str]:
    """Return the sort key of a stream. Streams are sorted by rank, and streams without a rank come last."""
    source, rank = key
    return rank is None, rank or 0, source


def leading_track(name: str, streams: Iterable[tuple[tuple[str, int | None], Curves]]) -> Sequence[Reading]:
    """Return the values of a metric from the stream that contains the most values of this metric.

    If several streams contain the same number of values, the stream of the lowest rank is used.
    """
    found = [(key, track) for key, curves in streams if (track := curves.tracks.get(name)) is not None]
    best = min(found, key=lambda entry: (-entry[1].seen, _by_rank(entry[0])), default=None)
    return best[1].readings if best is not None else ()


MOST_POINTS = 400  #: maximum number of points of one series; more points do not fit the width of a chart
MOST_RANKS = 16  #: maximum number of ranks whose seconds per step are in the charts
_LEAST_POINTS = 2
_NUMBERS = ("loss", "grad_norm", "learning_rate", "loss_scale")


def series_of(
    streams: Mapping[tuple[str, int | None], StreamReading], blamed: Collection[int] = ()
) -> list[Series]:
    """Return the metrics of the stream with the most points and the step times of at most 16 ranks.

    The step times of the `blamed` ranks, and of the slowest and the fastest rank, are always included. The
    result does not depend on the order of the streams.
    """
    ordered = sorted(streams.items(), key=lambda entry: _by_rank(entry[0]))
    found: list[Series] = []
    lead = leading_curve((key, stream.curves) for key, stream in ordered)
    if lead is not None:
        curve, place = lead
        found += _numbers(curve.points, ordered[place][0][1])
    paced = [(key[1], line) for key, stream in ordered if (line := stream.timelines.main) is not None]
    paces = [series for rank, line in paced if (series := _pace(line, rank)) is not None]
    return found + _of_few_ranks(paces, blamed)


def _of_few_ranks(paces: Sequence[Series], blamed: Collection[int]) -> list[Series]:
    if len(paces) <= MOST_RANKS:
        return list(paces)

    def mean(place: int) -> float:
        known = [value for value in paces[place].values if value is not None]
        return sum(known) / len(known) if known else 0.0

    places = range(len(paces))
    extremes = [max(places, key=mean), min(places, key=mean)]
    first = [place for place in places if paces[place].rank in blamed][: MOST_RANKS - len(extremes)]
    chosen = list(dict.fromkeys([*first, *extremes, *places]))[:MOST_RANKS]
    ranks = len({series.rank for series in paces})
    return [replace(paces[place], of_ranks=ranks) for place in sorted(chosen)]


def _numbers(points: Sequence[Point], rank: int | None) -> list[Series]:
    found = []
    for name in _NUMBERS:
        pairs = [
            (float(number) if point.step is None else point.step, value)
            for number, point in enumerate(points)
            if (value := getattr(point, name)) is not None
        ]
        if len(pairs) >= _LEAST_POINTS:
            by_epoch = all(point.step is not None and point.step == point.epoch for point in points)
            found.append(_series(name, rank, pairs, "epoch" if by_epoch else "step"))
    return found


def _pace(timeline: Timeline, rank: int | None) -> Series | None:
    paces = [
        (float(interval.step), interval.pace)
        for interval in timeline.intervals
        if interval.step is not None and interval.pace is not None
    ]
    return _series("step_seconds", rank, paces) if len(paces) >= _LEAST_POINTS else None


def _series(
    name: str,
    rank: int | None,
    points: Sequence[tuple[float, float]],
    by: Literal["step", "epoch"] = "step",
) -> Series:
    kept = thinned(points)
    values = [value if math.isfinite(value) else None for _, value in kept]
    return Series(name, rank, [step for step, _ in kept], values, by)


def thinned(entries: Sequence[_T], most: int = MOST_POINTS) -> list[_T]:
    """Return at most `most` of the entries, evenly spread from the first to the last."""
    if len(entries) <= most:
        return list(entries)
    last = len(entries) - 1
    return [entries[round(number * last / (most - 1))] for number in range(most)]
