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


def notes_on_ends(diagnosis: Diagnosis) -> list[str]:
    return [note for note in diagnosis.notes if "before the other ranks" in note]


@pytest.mark.parametrize("times", [True, False])
@pytest.mark.parametrize(("end", "ranks"), [(399, (0, 1, 3)), (400, (0, 1)), (150, (0, 1, 3, 4, 5, 6, 7))])
def test_rank_that_ended_early_is_reported_without_a_failure(
    diagnose: Ask, end: int, ranks: tuple[int, ...], times: bool
) -> None:
    found = diagnose({**others(end, *ranks, times=times), "rank2.log": log(1, 29, times=times)})
    expected = f"Rank 2 ended at step 29, before the other ranks (step {end}): check rank 2 first."
    assert notes_on_ends(found) == [expected]
    finished = end == 400
    assert found.verdict == ("finished" if finished else "unknown-failure")
    assert (found.progress.behind, found.progress.finished) == ([2], finished)
    said = "The run finished, but rank 2 ended" if finished else "Rank 2 ended before the other ranks, and"
    assert render(headline(found)).startswith(said) and "rank 2 " in render(headline(found), "zh")


def test_ranks_that_log_every_ten_steps_are_compared(diagnose: Ask) -> None:
    logs = others(400, 0, 1, 3, every=10)
    assert notes_on_ends(diagnose({**logs, "rank2.log": log(1, 100, every=10)}))
    assert not notes_on_ends(diagnose({**logs, "rank2.log": log(1, 361, every=10)})), (
        "copied a little earlier"
    )


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
    assert not notes_on_ends(found)


def test_most_ranks_must_have_continued(diagnose: Ask) -> None:
    starts = {f"rank{rank}.log": log(1, 29) for rank in (1, 2, 3)}
    assert not notes_on_ends(diagnose({**others(400, 0), **starts})), "only rank 0 prints beyond the start"
    assert not notes_on_ends(diagnose({**others(400, 0), "rank1.log": log(1, 29)}))
    assert not notes_on_ends(
        diagnose({**others(400, 0, 1), "rank2.log": log(1, 29), "rank3.log": log(1, 29)})
    )


def test_newer_part_of_a_rotated_log_is_used(diagnose: Ask) -> None:
    parts = {"rank2.log.1": log(1, 29), "rank2.log": log(30, 400)}
    assert not notes_on_ends(diagnose({**others(400, 0, 1, 3), **parts}))


def test_partially_read_log_gives_the_same_result(diagnose: Ask) -> None:
    def long(last: int, every: int = 1) -> str:
        return "".join(f"step {step}/9000 loss 1.5\n" for step in range(every, last + 1, every))

    logs = {f"rank{rank}.log": long(9000) for rank in (0, 1, 3)}
    found = diagnose({**logs, "rank2.log": long(4000), "rank4.log": long(9000, every=500)})
    expected = "Rank 2 ended at step 4000, before the other ranks (step 9000): check rank 2 first."
    assert notes_on_ends(found) == [expected]


HEARTBEAT = stamped([(9000.0, "[I] heartbeat")])


def stalled(diagnose: Ask, lasts: dict[int, int], *, every: dict[int, int] | None = None) -> Diagnosis:
    """Diagnose ranks with these last steps, of which a launcher's line long after shows the silence."""
    every = every or {}
    logs = {f"rank{rank}.log": log(1, last, every=every.get(rank, 1)) for rank, last in lasts.items()}
    found = diagnose({**logs, "launcher.log": HEARTBEAT})
    assert found.verdict == "stalled" and found.primary is not None
    assert found.primary.rule == "silent-hang-no-error" and found.primary.confidence == 0.6
    return found


def title(diagnosis: Diagnosis) -> str:
    assert diagnosis.primary is not None
    return render(diagnosis.primary.title)


@pytest.mark.parametrize(
    ("ranks", "behind"),
    [(8, {5: 100}), (8, {5: 102}), (3, {0: 102}), (16, {3: 102, 9: 102}), (16, {3: 101, 9: 100})],
)
def test_rank_behind_the_others_is_named(diagnose: Ask, ranks: int, behind: dict[int, int]) -> None:
    found = stalled(diagnose, {rank: behind.get(rank, 103) for rank in range(ranks)})
    first = min(behind)
    assert title(found).endswith(f"rank {', '.join(map(str, behind))}") and found.primary is not None
    assert (found.primary.rank, found.primary.step) == (first, behind[first])
    assert found.primary.file.endswith(f"rank{first}.log") and found.progress.behind == [*behind]
    assert "before all other ranks (step 103)" in render(found.findings[0].note)
    assert "look" in render(found.primary.fixes[0]).lower() and not notes_on_ends(found)


@pytest.mark.parametrize(
    "lasts",
    [
        [103] * 8,
        [103] * 4 + [102] * 4,
        [103] * 6 + [102] * 2,  # more than an eighth
        [103] * 7 + [104],  # ahead
        [103] * 5 + [101, 98, 95],  # the others do not agree
        [103, 102],
    ],
)
def test_no_rank_is_named_if_none_stands_out(diagnose: Ask, lasts: list[int]) -> None:
    found = stalled(diagnose, dict(enumerate(lasts)))
    assert "rank" not in title(found) and found.primary is not None
    assert (found.primary.rank, found.primary.file) == (None, "")


def test_rank_that_prints_seldom_is_not_named(diagnose: Ask) -> None:
    lasts = dict.fromkeys(range(8), 103)
    found = stalled(diagnose, lasts, every={0: 10})
    assert "rank" not in title(found) and not notes_on_ends(found)
    found = stalled(diagnose, {**lasts, 5: 80}, every={0: 10})
    assert title(found).endswith("rank 5")
    found = stalled(diagnose, {**lasts, 5: 91}, every=dict.fromkeys(range(8), 10))
    assert title(found).endswith("rank 5") and found.primary is not None and found.primary.step == 91


def test_buffered_output_does_not_show_which_rank_is_behind(diagnose: Ask) -> None:
    rows = [(60.0 * (s // 30 + 1), f"step {s}/400 loss {2 - s / 1000:.3f}") for s in range(1, 118)]
    logs = {f"rank{rank}.log": stamped(rows) for rank in range(8)}  # blocks of 30 lines
    found = diagnose({**logs, "rank5.log": stamped(rows[:-1]), "launcher.log": HEARTBEAT})
    assert found.verdict == "stalled" and "rank" not in title(found)


def test_unfinished_log_shows_where_to_look_if_the_run_hangs(diagnose: Ask) -> None:
    logs = {f"rank{rank}.log": log(1, 100 if rank == 5 else 103, times=False) for rank in range(8)}
    found = diagnose(logs)
    assert found.verdict == "unfinished" and not found.progress.behind
    expected = (
        "look at rank 5 first: the last step of rank 5 is 100, but the last step of all other ranks is 103."
    )
    assert found.notes[-1] == f"If the run has stalled, {expected}"
