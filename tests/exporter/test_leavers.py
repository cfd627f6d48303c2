"""Which ranks left while others went on, from what they say and the steps that they tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.watching.leavers import Leavers
from stallwatch_rules.endings import Left


def step(leavers: Leavers, rank: int, number: int, at: float) -> None:
    leavers.record(Record(rank, number, at, {"step": float(number)}))


def leave(leavers: Leavers, *ranks: int, at: float, error: bool = False) -> None:
    for rank in ranks:
        leavers.heard({"kind": "left", "rank": rank, "time": at, "error": error})


def look(leavers: Leavers, *up: int) -> list[Left]:
    leavers.look({rank: frozenset({Path("r")} if rank in up else ()) for rank in range(4)})
    return leavers.left


@pytest.mark.parametrize("late", [False, True])
def test_a_next_program_with_fewer_ranks_misses_none_of_the_one_before(late: bool) -> None:
    """``late``: nobody looked until the end of the second one."""
    leavers = Leavers()
    told = [(rank, number, float(number)) for number in range(1, 41) for rank in range(3)]
    again = [(rank, number, 100.0 + number) for number in range(1, 81) for rank in range(2)]
    if late:
        leave(leavers, 0, 1, 2, at=41.0)
        leave(leavers, 0, at=200.0)
    for rank, number, at in told:
        step(leavers, rank, number, at)
    if not late:
        leave(leavers, 0, 1, 2, at=41.0)
        assert look(leavers) == []
    for rank, number, at in again:
        step(leavers, rank, number, at)
    assert {one.rank for one in look(leavers, 1)} <= {0} and 2 not in leavers.well
    if not late:
        leave(leavers, 0, at=200.0)
    step(leavers, 1, 90, 201.0)
    assert look(leavers, 1) == [Left(0, 80, 10)]


def test_what_a_rank_counts_while_it_ends_is_no_next_program() -> None:
    leavers = Leavers()
    for rank in range(3):
        step(leavers, rank, 40, 40.0)
    leave(leavers, 1, 2, at=41.0)
    step(leavers, 1, 40, 42.0)  # a warning of its last second, with the step that it made last
    step(leavers, 0, 50, 50.0)
    assert look(leavers, 0) == [Left(2, 40, 10)]


def test_a_rank_that_left_with_an_error_and_then_well_costs_no_record() -> None:
    """All that one look brought: both ends, and the step between them."""
    leavers = Leavers()
    step(leavers, 0, 1, 1.0)
    step(leavers, 1, 1, 1.0)
    leave(leavers, 1, at=2.0, error=True)
    leave(leavers, 1, at=4.0)
    step(leavers, 1, 2, 3.0)
    step(leavers, 0, 9, 9.0)
    assert not leavers.badly and look(leavers, 0) == [Left(1, 2, 8)]


@pytest.mark.parametrize(("code", "left"), [(0, [Left(1, 5, 0)]), (None, [])])
def test_a_rank_that_ended_with_0_and_no_word_left_the_others_that_failed(
    code: int | None, left: list[Left]
) -> None:
    leavers = Leavers()
    for number in range(1, 6):
        for rank in (0, 1):
            step(leavers, rank, number, float(number))
    leave(leavers, 0, at=6.0, error=True)
    leavers.look({0: (), 1: ()}, {0: 1, 1: code} if code is not None else {0: 1})
    assert leavers.left == left
