"""A rank whose steps end before those of the others, in runs that finish or just end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from smallruns import stamped

from stallwatch_rules.locale import render
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.phrases import headline

Ask = Callable[..., Diagnosis]
SECONDS = 2.0  #: a step


def log(
    first: int, last: int, *, every: int = 1, total: int = 400, times: bool = True, more: str = ""
) -> str:
    rows = [(SECONDS * s, f"step {s}/{total} loss {2 - s / 1000:.3f}") for s in range(first, last + 1, every)]
    text = stamped(rows) if times else "".join(f"{row}\n" for _, row in rows)
    return text + more


def others(end: int, *ranks: int, every: int = 1, times: bool = True) -> dict[str, str]:
    return {f"rank{rank}.log": log(1, end, every=every, times=times) for rank in ranks}


def told(diagnosis: Diagnosis) -> list[str]:
    return [note for note in diagnosis.notes if "before the other ranks" in note]


@pytest.mark.parametrize("times", [True, False])
@pytest.mark.parametrize(("end", "ranks"), [(399, (0, 1, 3)), (400, (0, 1)), (150, (0, 1, 3, 4, 5, 6, 7))])
def test_rank_that_ended_early_is_reported_without_a_failure(
    diagnose: Ask, end: int, ranks: tuple[int, ...], times: bool
) -> None:
    found = diagnose({**others(end, *ranks, times=times), "rank2.log": log(1, 29, times=times)})
    assert told(found) == [f"rank 2 ended at step 29, before the other ranks (step {end}): look there first."]
    finished = end == 400
    assert found.verdict == ("finished" if finished else "unknown-failure")
    assert (found.progress.behind, found.progress.finished) == ([2], finished)
    said = "The run finished, but rank 2 ended" if finished else "rank 2 ended before the other ranks, and"
    assert render(headline(found)).startswith(said) and "rank 2 " in render(headline(found), "zh")


def test_ranks_that_log_every_ten_steps_are_compared(diagnose: Ask) -> None:
    logs = others(400, 0, 1, 3, every=10)
    assert told(diagnose({**logs, "rank2.log": log(1, 100, every=10)}))
    assert not told(diagnose({**logs, "rank2.log": log(1, 361, every=10)})), "copied a little earlier"


@pytest.mark.parametrize(
    "quiet",
    [
        log(1, 5),  # only the start
        log(1, 399, every=50),  # seldom
        log(1, 96, every=25) + log(100, 106),  # seldom, and some at the end
        log(300, 329),  # what is left of a rotated log
        log(1, 29, total=30),  # another counter
        log(1, 29, more=stamped([(SECONDS * 390, "[W] a slow data loader")])),  # it is there, and silent
        log(1, 29) + log(1, 29),  # began anew
        "loading\n",
    ],
)
def test_rank_with_different_output_is_not_reported(diagnose: Ask, quiet: str) -> None:
    found = diagnose({**others(400, 0, 1, 3), "rank2.log": quiet})
    assert not told(found)


def test_most_ranks_must_have_continued(diagnose: Ask) -> None:
    starts = {f"rank{rank}.log": log(1, 29) for rank in (1, 2, 3)}
    assert not told(diagnose({**others(400, 0), **starts})), "only rank 0 prints beyond the start"
    assert not told(diagnose({**others(400, 0), "rank1.log": log(1, 29)}))
    assert not told(diagnose({**others(400, 0, 1), "rank2.log": log(1, 29), "rank3.log": log(1, 29)}))


def test_newer_part_of_a_rotated_log_is_used(diagnose: Ask) -> None:
    parts = {"rank2.log.1": log(1, 29), "rank2.log": log(30, 400)}
    assert not told(diagnose({**others(400, 0, 1, 3), **parts}))


def test_partially_read_log_gives_the_same_result(diagnose: Ask) -> None:
    def long(last: int, every: int = 1) -> str:
        return "".join(f"step {step}/9000 loss 1.5\n" for step in range(every, last + 1, every))

    logs = {f"rank{rank}.log": long(9000) for rank in (0, 1, 3)}
    found = diagnose({**logs, "rank2.log": long(4000), "rank4.log": long(9000, every=500)})
    assert told(found) == ["rank 2 ended at step 4000, before the other ranks (step 9000): look there first."]
