"""The training model of the simulator: the place of each rank after all have stopped."""

from __future__ import annotations

import random

import pytest
from cluster import Trial, table
from cluster_training import FAULTS, LAYOUTS, Hang, Training, Truth, drawn, hang, judged, parts, spans

from stallwatch_rules.stacks.records import StallStacks


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_stalls_every_layout(fault: str, layout: str) -> None:
    found = hang(fault, Training(layout, 4, 8, random.Random(f"{fault} {layout}")))
    reported = parts(found)
    seen = sorted(rank for stacks in reported.values() for group in stacks.groups for rank in group.ranks)
    silent = {rank for host in found.truth.silent for rank in found.training.ranks_of(host)}
    assert seen == sorted(set(range(32)) - silent)
    assert (
        found.truth.silent
        or found.truth.hosts == set(map(found.training.host, found.truth.ranks))
        or (fault == "file-system")
    )


def test_trials_are_reproducible() -> None:
    first, second = (parts(drawn(7, 3, "order", 8, 4)) for _ in range(2))
    assert first == second
    assert parts(drawn(7, 4, "order", 8, 4)) != first


def waits_of(found: Hang) -> dict[int, str]:
    return {rank: state.op.place if state.waits else "" for rank, state in found.states.items()}


def test_all_other_ranks_wait_for_a_sleeping_rank() -> None:
    found = hang("sleep", Training("dp", 2, 4, random.Random(3)))
    (guilty,) = found.truth.ranks
    places = waits_of(found)
    assert places.pop(guilty) == ""
    assert len(set(places.values())) == 1 and "" not in places.values()


def test_skipped_collective_makes_the_rank_count_fewer_than_its_group() -> None:
    found = hang("skipped", Training("moe", 2, 8, random.Random(5)))
    (guilty,) = found.truth.ranks
    group = found.training.group_of(guilty, "ep")
    counts = [state.joined for state in found.states.values()]
    assert found.states[guilty].waits
    others = [found.states[rank].joined for rank in found.training.groups[group] if rank != guilty]
    assert (
        any(found.states[guilty].joined != other for other in others)
        or len({(state.op.name, state.op.place) for state in found.states.values()}) > 1
    )
    assert len(counts) == 16


def test_pipeline_stages_wait_for_the_stuck_stage() -> None:
    found = hang("sleep", Training("tp-pp-dp", 8, 8, random.Random(2)))
    assert {"recv", "collective"} <= {state.op.kind for state in found.states.values() if state.waits}


def test_ranks_of_a_host_in_the_same_state_are_one_group() -> None:
    found = hang("sleep", Training("fsdp", 4, 8, random.Random(3)))
    (host,) = found.truth.hosts
    other = next(name for name in found.training.hosts if name != host)
    assert [len(group.ranks) for group in found.stacks(other, 0.0).groups] == [8]
    assert sorted(len(group.ranks) for group in found.stacks(host, 0.0).groups) == [1, 7]


@pytest.mark.parametrize(
    ("odd", "confidence", "verdict"),
    [
        ([3], 0.97, "right"),
        ([2], 0.97, "wrong"),
        ([2, 3], 0.97, "wrong"),
        ([2, 3], 0.6, "cannot tell"),
        ([], 0.0, "cannot tell"),
    ],
)
def test_blame_is_right_only_with_exactly_the_faulty_ranks(
    odd: list[int], confidence: float, verdict: str
) -> None:
    truth = Truth("sleep", frozenset([3]), frozenset(["h0"]))
    stacks = StallStacks(time=0.0, seconds=0.0, odd=odd, confidence=confidence)
    assert judged(truth, stacks, lambda rank: f"h{rank // 4}") == verdict


def test_any_blame_is_wrong_if_no_rank_is_at_fault() -> None:
    truth = Truth("frozen", frozenset(), frozenset())
    nobody, somebody = (StallStacks(time=0.0, seconds=0.0, odd=odd) for odd in ([], [1]))
    assert judged(truth, nobody, lambda rank: "h0") == "right"
    assert judged(truth, somebody, lambda rank: "h0") == "wrong"
    assert judged(truth, None, lambda rank: "h0") == "cannot tell"


def test_ranks_are_shown_as_spans() -> None:
    assert spans([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert spans(range(4)) == "0-3"


def test_table_counts_the_verdicts() -> None:
    trials = [
        Trial(0, 1, "sleep", verdict="right", seconds=1.0),
        Trial(1, 1, "sleep", verdict="wrong", openings=2, seconds=3.0),
        Trial(2, 1, "frozen", verdict="cannot tell", incidents=2, openings=0),
    ]
    *_, sleep, frozen, every = table(trials).splitlines()
    assert sleep.startswith("| sleep | 2 | 1 (50.0%) | 1 (50.0%) | 0 (0.0%) | 2 | 1 | 0 |")
    assert frozen.startswith("| frozen | 1 | 0 (0.0%) | 0 (0.0%) | 1 (100.0%) | 0 | 0 | 1 |")
    assert every.startswith("| all | 3 | 1 (33.3%) | 1 (33.3%) | 1 (33.3%) | 2 | 1 | 1 |")
