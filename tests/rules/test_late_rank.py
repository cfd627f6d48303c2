"""The rank that the others wait for: by when each begins its backward pass."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from stallwatch_rules.judgements.late_rank import IN_A_ROW, LATE, STEPS, LateRanks, Own

Seconds = Callable[[int, int], float]  # of a rank's own work in a step


def late_at(
    own: Seconds, ranks: int = 4, steps: int = 400, *, together: bool = True
) -> list[tuple[int, int]]:
    """The steps at which a rank was named, and the rank; -1 when none is any more."""
    watched, changes = LateRanks(), list[tuple[int, int]]()
    for step in range(steps):
        seconds = [own(rank, step) for rank in range(ranks)]
        for rank, each in enumerate(seconds):
            if watched.see(rank, step, Own(each, (max(seconds) if together else each) + 0.1)):
                changes.append((step, watched.late.rank if watched.late is not None else -1))
    return changes


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_rank_that_comes_later_in_each_step_is_named(ranks: int) -> None:
    changes = late_at(lambda rank, step: 0.8 if rank == 1 and step >= 100 else 0.5, ranks)
    assert changes == [(100 + IN_A_ROW - 1, 1)]


def test_it_may_be_in_time_in_a_step_of_ten() -> None:
    changes = late_at(lambda rank, step: 0.8 if rank == 1 and step >= 100 and step % 10 else 0.5)
    assert [rank for _, rank in changes] == [1]
    assert 100 + LATE <= changes[0][0] <= 100 + STEPS


def test_it_is_over_when_the_rank_keeps_up_again() -> None:
    changes = late_at(lambda rank, step: 0.8 if rank == 1 and 100 <= step < 200 else 0.5)
    assert [rank for _, rank in changes] == [1, -1]
    assert 210 <= changes[1][0] <= 200 + STEPS


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
def test_ranks_that_vary_alike_are_none(ranks: int, spread: float) -> None:
    draw = random.Random(3)
    assert all(late_at(lambda *_: draw.lognormvariate(0, spread), ranks) == [] for _ in range(10))


def test_a_rank_that_is_late_now_and_then_is_none() -> None:
    """The first rank logs, evaluates or saves every few steps."""
    assert late_at(lambda rank, step: 2.0 if rank == 0 and step % 4 == 0 else 0.5) == []


def test_a_little_later_is_no_straggler() -> None:
    assert late_at(lambda rank, _: 0.55 if rank == 0 else 0.5) == []
    assert late_at(lambda rank, _: 0.005 if rank == 0 else 0.001) == []


def test_ranks_that_do_not_wait_for_each_other_are_not_compared() -> None:
    assert late_at(lambda rank, _: 0.8 if rank == 1 else 0.5, together=False) == []


@pytest.mark.parametrize("left", [[0, 2], [0]])
def test_a_restart_without_the_late_rank_ends_it_and_the_others_are_judged(left: list[int]) -> None:
    watched = LateRanks()
    for step in range(60):
        for rank in range(3):
            watched.see(rank, step, Own(0.8 if rank == 1 else 0.5, 0.9))
    assert watched.late is not None and watched.late.rank == 1
    changes = list[int]()
    for step in range(30, 300):  # from its last checkpoint
        for rank in left:
            if watched.see(rank, step, Own(0.8 if rank == 2 and step >= 200 else 0.5, 0.9)):
                changes.append(watched.late.rank if watched.late is not None else -1)
    assert changes == ([-1, 2] if 2 in left else [-1])


def test_steps_that_a_rank_never_reports_are_forgotten() -> None:
    watched = LateRanks()
    for step in range(1000):
        watched.see(0, step, Own(0.5, 1.0))
    assert len(watched._open) <= 100
