"""Process groups that a rank reports, and the additions of the flight recorder."""

from __future__ import annotations

from typing import Any

import pytest

from stallwatch_rules.report.stacks import listing
from stallwatch_rules.stacks.axes import axis_of
from stallwatch_rules.stacks.flight import read_recorder
from stallwatch_rules.stacks.folding import fold
from stallwatch_rules.stacks.records import Counts, RankAnswer

NAMES = [
    ("mesh_tp", "tp"),
    ("mesh_dp_shard_cp", "dp"),
    ("_TENSOR_MODEL_PARALLEL_GROUP", "tp"),
    ("_PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
    ("_DATA_PARALLEL_GROUP_WITH_CP_GLOO", "dp"),
    ("_EXPERT_MODEL_PARALLEL_GROUP", "ep"),
    ("_EXPERT_TENSOR_PARALLEL_GROUP", "tp"),
    ("_EXPERT_DATA_PARALLEL_GROUP", "dp"),
    ("_CONTEXT_PARALLEL_GROUP", "cp"),
    ("_SEQUENCE_PARALLEL_GROUP", "cp"),
    ("_ZERO_PARAM_INTRA_PARALLEL_GROUP", "dp"),
    ("pp_proc_group", "pp"),
    ("_WORLD_GROUP", "world"),
    ("_MODEL_PARALLEL_GROUP", ""),
    ("_EMBEDDING_GROUP", ""),
    ("_TENSOR_AND_DATA_PARALLEL_GROUP", ""),
    ("undefined", ""),
]


@pytest.mark.parametrize(("name", "axis"), NAMES)
def test_axis_is_read_from_the_name_of_a_group(name: str, axis: str) -> None:
    assert axis_of(["undefined", name]) == axis


def test_group_of_all_ranks_is_the_world_by_default() -> None:
    assert axis_of(["mesh_dp"], whole=True) == "dp"
    assert axis_of(["default_pg"], whole=True) == "world"


def group(name: str, joined: int | None, ranks: str = "0-3", **about: Any) -> dict[str, Any]:
    return {"names": [name, about.pop("description", "undefined")], "joined": joined, "ranks": ranks, **about}


def status(**numbers: tuple[int, int]) -> dict[str, Any]:
    return {
        number.lstrip("g"): {"last_enqueued_collective": str(joined), "last_completed_collective": str(done)}
        for number, (joined, done) in numbers.items()
    }


def entry(number: int, name: str, sequence: int) -> dict[str, Any]:
    about = {"pg_id": number, "process_group": [name, ""], "collective_seq_id": sequence}
    return {**about, "state": "scheduled", "is_p2p": False, "profiling_name": "nccl:all_reduce"}


def test_recorder_adds_completed_collectives() -> None:
    groups = [group("0", 4, recorded=0), group("1", 0, "0,2", recorded=1), group("5", 9, "0-1", recorded=2)]
    answer = {"groups": groups, "status": status(g0=(4, 4), g2=(9, 8)), "entries": [entry(2, "5", 9)]}
    found = read_recorder({"world_size": 4, **answer})
    assert found.names == {0: "0", 1: "1", 2: "5"}
    assert found.counts == {0: Counts(4, 4), 1: Counts(0, None), 2: Counts(9, 8)}
    assert [(item.group, item.name, item.number) for item in found.waiting] == [(2, "5", 9)]
    assert found.members == {"0": (0, 1, 2, 3), "1": (0, 2), "5": (0, 1)}


def test_entries_identify_groups_after_a_destroyed_group() -> None:
    """The recorder does not reuse numbers: its group 1 is the destroyed group."""
    groups = [group("0", 4, recorded=0), group("2", 9, recorded=1), group("3", 7, recorded=2)]
    numbers = status(g0=(4, 4), g1=(30, 30), g2=(9, 8), g3=(7, 6))
    found = read_recorder({"groups": groups, "status": numbers, "entries": [entry(3, "3", 7)]})
    assert found.counts == {0: Counts(4, None), 1: Counts(9, None), 2: Counts(7, 6)}
    assert [(item.group, item.name) for item in found.waiting] == [(2, "3")]


def test_pipeline_transfers_are_not_collectives() -> None:
    """NCCL's recorder writes the number of a message in place of a collective's number."""
    groups = [group("0", 4, recorded=0), group("1", 2, recorded=1, description="mesh_pp")]
    found = read_recorder({"groups": groups, "status": status(g0=(4, 4), g1=(640, 639))})
    assert found.counts == {0: Counts(4, 4), 1: Counts(2, None)}


def test_collective_of_an_unknown_group_is_separate() -> None:
    found = read_recorder({"groups": [group("0", 4)], "entries": [entry(0, "7", 3)]})
    assert [(item.group, item.name) for item in found.waiting] == [(1, "7")]


@pytest.mark.parametrize("ranks", ["3-1", "0-999999999", "x", "1,,2", "-1", "0-131071,5", None, 7.5])
def test_invalid_ranks_are_ignored(ranks: Any) -> None:
    found = read_recorder({"groups": [group("0", 4, ranks)]})
    assert (found.members, found.counts) == ({}, {0: Counts(4, None)})


@pytest.mark.parametrize("groups", [7, [7, {}, {"names": 3}, {"names": []}], {"0": 7}])
def test_malformed_groups_are_ignored(groups: Any) -> None:
    assert read_recorder({"groups": groups}).members == {}


def test_listing_shows_groups_and_completed_collectives() -> None:
    groups = [group("0", 4, recorded=0), group("1", 2, "0-1", recorded=1, description="mesh_tp")]
    answer = {"world_size": 4, "groups": groups, "status": status(g0=(4, 3)), "entries": [entry(0, "0", 4)]}
    asked = RankAnswer(0, 100, recorded=read_recorder(answer))
    text = listing(fold([asked], time=1.8e9), [asked])
    assert "  rank 0: group 0 (world, ranks 0–3): 4 collectives joined, 3 done\n" in text
    assert "  rank 0: group 1 (tp, ranks 0, 1): 2 collectives joined\n" in text
