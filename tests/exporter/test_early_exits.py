"""Ranks that left while others continued, from their records and their steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.watching.lost_ranks import RankExits
from stallwatch_rules.endings import ExitedRank


def step(exits: RankExits, rank: int, number: int, at: float) -> None:
    exits.record(Record(rank, number, at, {"step": float(number)}))


def leave(exits: RankExits, *ranks: int, at: float, error: bool = False) -> None:
    for rank in ranks:
        exits.take({"kind": "left", "rank": rank, "time": at, "error": error})


def look(exits: RankExits, *up: int) -> list[ExitedRank]:
    exits.look({rank: frozenset({Path("r")} if rank in up else ()) for rank in range(4)}, 0.0)
    return exits.left


@pytest.mark.parametrize("late", [False, True])
def test_next_program_with_fewer_ranks_misses_none(late: bool) -> None:
    """With ``late``, the first check comes after the end of the second program."""
    exits = RankExits()
    messages = [(rank, number, float(number)) for number in range(1, 41) for rank in range(3)]
    again = [(rank, number, 100.0 + number) for number in range(1, 81) for rank in range(2)]
    if late:
        leave(exits, 0, 1, 2, at=41.0)
        leave(exits, 0, at=200.0)
    for rank, number, at in messages:
        step(exits, rank, number, at)
    if not late:
        leave(exits, 0, 1, 2, at=41.0)
        assert look(exits) == []
    for rank, number, at in again:
        step(exits, rank, number, at)
    assert {item.rank for item in look(exits, 1)} <= {0} and 2 not in exits.well
    if not late:
        leave(exits, 0, at=200.0)
    step(exits, 1, 90, 201.0)
    assert look(exits, 1) == [ExitedRank(0, 80, 10)]


def test_counts_of_an_ending_rank_are_not_the_next_program() -> None:
    exits = RankExits()
    for rank in range(3):
        step(exits, rank, 40, 40.0)
    leave(exits, 1, 2, at=41.0)
    step(exits, 1, 40, 42.0)  # a warning of its last second, with its last step
    step(exits, 0, 50, 50.0)
    assert look(exits, 0) == [ExitedRank(2, 40, 10)]


def test_error_and_success_of_a_rank_lose_no_record() -> None:
    """One check returns all events: both ends, and the step between them."""
    exits = RankExits()
    step(exits, 0, 1, 1.0)
    step(exits, 1, 1, 1.0)
    leave(exits, 1, at=2.0, error=True)
    leave(exits, 1, at=4.0)
    step(exits, 1, 2, 3.0)
    step(exits, 0, 9, 9.0)
    assert not exits.badly and look(exits, 0) == [ExitedRank(1, 2, 8)]


@pytest.mark.parametrize(("code", "left"), [(0, [ExitedRank(1, 5, 0)]), (None, [])])
def test_silent_success_of_a_rank_before_a_failure_is_an_early_exit(
    code: int | None, left: list[ExitedRank]
) -> None:
    exits = RankExits()
    for number in range(1, 6):
        for rank in (0, 1):
            step(exits, rank, number, float(number))
    leave(exits, 0, at=6.0, error=True)
    exits.look({0: frozenset(), 1: frozenset()}, 9.0, {0: 1, 1: code} if code is not None else {0: 1})
    assert exits.left == left
