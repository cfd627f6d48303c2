"""Losses that are kept of a long run."""

from __future__ import annotations

import math
import pickle
from itertools import pairwise

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.progress.curve import LATEST, OLDER, Curve, Curves, leading_curve, series_of
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Sample


def sample(step: int | None, loss: float | None = 1.0, series: str = "dict", **values: float) -> Sample:
    found = values if loss is None else {"loss": loss, **values}
    return Sample(0, None, step, None, found, False, series)


def test_recent_points_are_complete_and_older_ones_thinned() -> None:
    curve = Curve("dict")
    count = 20_000
    for step in range(1, count + 1):
        curve.see(sample(step), step)
    points = curve.points
    assert len(points) <= OLDER + LATEST + 1
    assert [point.step for point in points[-LATEST:]] == list(range(count - LATEST + 1, count + 1))
    older = [point.step or 0 for point in points[:-LATEST]]
    gaps = {later - earlier for earlier, later in pairwise(older)}
    assert len(gaps) == 1 and older[0] == 1


def test_repeated_step_is_one_point() -> None:
    curve = Curve("dict")
    for step in (1, 1, 2, 2, 3):
        curve.see(sample(step), step)
    assert [point.step for point in curve.points] == [1, 2, 3]
    for epoch in (0.1, 0.1, 0.2):
        curve.see(sample(None, epoch=epoch), 0)
    assert [point.step for point in curve.points[3:]] == [0.1, 0.2]


def test_restarted_epochs_drop_earlier_losses() -> None:
    curve = Curve("epoch items")
    for step, epoch, loss in ((1, 0.0, 9.0), (501, 1.0, 1.0), (1, 0.0, 9.0), (501, 1.0, 1.0)):
        curve.see(sample(step, loss, epoch=epoch), 0)
    assert [(point.step, point.loss) for point in curve.points] == [(1, 9.0), (501, 1.0)]
    curve.see(sample(1, 1.5, epoch=0.0), 0)  # the same weights are trained once more
    curve.see(sample(2501, 1.4, epoch=5.0), 0)
    curve.see(sample(1101, 9.0, epoch=2.2), 0)  # resumed from a checkpoint, and diverged
    assert len(curve.points) == 5
    curve.see(sample(1102, math.nan, epoch=2.2), 0)
    curve.see(sample(1, 20.0, epoch=0.0), 0)  # a new start after the NaN
    assert len(curve.points) == 1


def test_longest_series_is_the_main_curve() -> None:
    one, other = Curves(), Curves()
    for step in range(5):
        one.see(sample(step, series="text loss"), step)
        other.see(sample(step), step)
        other.see(sample(step, series="bar"), step)
    other.see(sample(9), 9)
    other.see(sample(10, loss=None, eval_loss=3.0), 10)
    lead = leading_curve([(("a.log", 1), one), (("b.log", 0), other)])
    assert lead is not None
    assert (lead[0].series, lead[0].seen, lead[1]) == ("dict", 6, 1)
    assert leading_curve([(("a.log", 0), Curves())]) is None


def test_lowest_rank_is_the_main_curve_among_equals() -> None:
    zero, one = Curves(), Curves()
    for curves in (zero, one):
        curves.see(sample(1), 1)
    streams = [(("r1.log", 1), one), (("r0.log", 0), zero)]
    for order in (streams, streams[::-1]):
        lead = leading_curve(order)
        assert lead is not None and order[lead[1]][0] == ("r0.log", 0)


def test_curves_can_be_serialized() -> None:
    curves = Curves()
    curves.see(sample(1, grad_norm=2.0), 1)
    again = pickle.loads(pickle.dumps(curves))
    assert again.main is not None and curves.main is not None
    assert again.main.points == curves.main.points


def test_blamed_slowest_and_fastest_ranks_are_among_the_step_times(few_rules: Catalogue) -> None:
    reading = RunReading(few_rules)
    for rank in range(40):
        seconds = {25: 3, 26: 1}.get(rank, 2)
        reader = LineReader(f"rank_{rank}.log", rank)
        lines = [f"2026-11-29 08:00:{seconds * step:02d} step {step}/20 loss 1.5\n" for step in range(1, 10)]
        reading.feed([*reader.feed("".join(lines).encode()), *reader.finish()])
    paces = [item for item in series_of(reading.streams, [30]) if item.name == "step_seconds"]
    assert [item.rank for item in paces] == [*range(13), 25, 26, 30]
    assert {item.of_ranks for item in paces} == {40}
    assert len([item for item in series_of(reading.streams, range(40)) if item.of_ranks]) == 16


def test_series_has_its_unit(few_rules: Catalogue) -> None:
    for axis, by in (("'epoch': {}.5", "epoch"), ("'epoch': 0.1, 'step': {}", "step")):
        reading, reader = RunReading(few_rules), LineReader("run.log")
        lines = "".join(f"{{'loss': 1.5, {axis.format(number)}}}\n" for number in range(1, 9))
        reading.feed([*reader.feed(lines.encode()), *reader.finish()])
        assert {item.by for item in series_of(reading.streams) if item.name == "loss"} == {by}
