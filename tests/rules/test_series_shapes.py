"""Series are learnt from what recurs and advances: how far a run came, and whether it is complete."""

from __future__ import annotations

import pytest
from shapes import FIRST_HALF, OTHERS, SECOND_HALF, Other, Shape

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.reading import RunReading

SHAPES = [*FIRST_HALF, *SECOND_HALF]


def read(text: str) -> ProgressTracker:
    reading, lines = RunReading(Catalogue({})), LineReader("train.log")
    reading.feed(lines.feed(text.encode()) + lines.finish())
    return reading.tracker


def named(shapes: list[Shape] | tuple[Other, ...]) -> list[str]:
    return [shape.name for shape in shapes]


@pytest.mark.parametrize("shape", SHAPES, ids=named(SHAPES))
def test_the_last_count_of_a_whole_run_is_found_and_its_end(shape: Shape) -> None:
    tracker = read(shape.text(1, whole=True))
    assert tracker.last_step is not None
    if shape.shown:
        assert tracker.last_step == shape.last(whole=True)
    if shape.ends:
        assert tracker.finish is not None


@pytest.mark.parametrize("shape", SHAPES, ids=named(SHAPES))
def test_a_run_that_was_cut_off_is_not_complete(shape: Shape) -> None:
    tracker = read(shape.text(1, whole=False))
    if shape.shown:
        assert tracker.last_step == shape.last(whole=False)
    assert tracker.finish is None


@pytest.mark.parametrize("other", OTHERS, ids=named(OTHERS))
def test_other_numbers_that_advance_are_no_progress(other: Other) -> None:
    tracker = read(other.text(1))
    assert (tracker.progressed, tracker.last_step, tracker.finish) == (False, None, None)
