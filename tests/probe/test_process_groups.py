"""Process groups in a rank's answer: of a mesh that really hangs, of frameworks, and of a thousand ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ranks import needs

from stallwatch_exporter.probe import answers
from stallwatch_exporter.rings.probing import with_probe
from stallwatch_exporter.stacks.gathering import gather
from stallwatch_exporter.stacks.local_ranks import local_ranks
from stallwatch_rules.stacks.flight import read_recorder
from stallwatch_rules.stacks.records import Counts, RankAnswer

MESH = """
import os, sys, time, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
store = dist.FileStore(f"{sys.argv[1]}/store", 4)
dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=4)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    for name, times in (("tp", 2), ("dp", 1)):
        for _ in range(times):
            dist.all_reduce(torch.ones(1), group=mesh.get_group(name))
    optimizer.step()
if dist.get_rank() == 3:
    time.sleep(600)
dist.all_reduce(torch.ones(1), group=mesh.get_group("tp"))
dist.barrier()
"""


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the rings of a mesh of 2 x 2 ranks at a hang.

    Rank 3 sleeps, rank 2 waits for it in "tp", the others in a barrier.
    """
    folder = tmp_path_factory.mktemp("mesh")
    rings = folder / "rings"
    rings.mkdir()
    (folder / "train.py").write_text(MESH)
    command = [sys.executable, str(folder / "train.py"), str(folder)]
    with ExitStack() as ends:
        for rank in range(4):
            environ = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "4", "OMP_NUM_THREADS": "1"}
            child = subprocess.Popen(command, env=with_probe(environ, rings))
            ends.callback(child.wait)
            ends.callback(child.kill)
        yield rings


def asked_at_the_hang(rings: Path) -> dict[int, RankAnswer]:
    """Return the ranks' answers after all waiting ranks have joined their collectives."""
    until = time.monotonic() + 120
    while True:
        asked = {item.rank: item for item in gather(local_ranks(rings, None))}
        if len(asked) == 4 and [joined(asked[rank], "tp") for rank in range(4)] == [7, 7, 7, 6]:
            return asked
        assert time.monotonic() < until, asked
        time.sleep(0.1)


def joined(one: RankAnswer, axis: str) -> int | None:
    """Return the number of collectives that the rank has joined in its group of this axis."""
    names = {name for name, each in one.recorded.axes.items() if each == axis}
    return next(
        (one.recorded.counts[at].joined for at, name in one.recorded.names.items() if name in names), None
    )


class TestMesh:
    pytestmark = needs("torch")

    def test_ranks_of_a_hanging_mesh_report_their_groups_and_how_far_they_are(self, hanging: Path) -> None:
        asked = asked_at_the_hang(hanging)
        recorded = {rank: item.recorded for rank, item in asked.items()}
        by_axis = {
            rank: {axis: item.members[name] for name, axis in item.axes.items()}
            for rank, item in recorded.items()
        }
        world = (0, 1, 2, 3)
        assert by_axis == {
            0: {"world": world, "dp": (0, 2), "tp": (0, 1)},
            1: {"world": world, "dp": (1, 3), "tp": (0, 1)},
            2: {"world": world, "dp": (0, 2), "tp": (2, 3)},
            3: {"world": world, "dp": (1, 3), "tp": (2, 3)},
        }
        assert [joined(asked[rank], "dp") for rank in range(4)] == [3] * 4
        assert [joined(asked[rank], "world") for rank in range(4)] == [1, 1, 0, 0]
        assert {value.origin for value in asked.values()} == {"probe"}
        assert [asked[rank].step for rank in range(4)] == [3] * 4

    def test_flight_recorder_adds_completed_and_running_collectives(self, hanging: Path) -> None:
        two = asked_at_the_hang(hanging)[2].recorded
        tp = next(number for number, name in two.names.items() if two.axes[name] == "tp")
        assert two.counts[tp] == Counts(7, 6)
        assert [(item.group, item.name, item.number, item.operation) for item in two.waiting] == [
            (tp, two.names[tp], 7, "all_reduce")
        ]


class Group:
    """Process group, which like torch's is compared by identity."""

    def __init__(self, description: str, joined: int | None = 0) -> None:
        self.group_desc = description
        self._joined = joined

    def _get_sequence_number_for_group(self) -> int:
        if self._joined is None:
            raise RuntimeError("ProcessGroup mpi does not yet support sequence numbers.")
        return self._joined


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a torch with process groups that the test adds."""
    found = SimpleNamespace(pg_map={}, pg_names={}, pg_group_ranks={})
    torch = ModuleType("torch.distributed.distributed_c10d")
    torch.__dict__["_world"] = found
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", torch)
    for name in (*answers._LAYOUTS, answers._PIPELINE):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return found


def add(world: Any, ranks: Any, group: Group, backend: str = "nccl") -> Group:
    """Add a group that includes this rank, and return it."""
    world.pg_names[group] = str(len(world.pg_map))
    world.pg_map[group] = (backend, None)
    world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}
    return group


def test_axis_of_a_group_comes_from_the_framework(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [add(world, [0, number + 1], Group("undefined")) for number in range(5)]
    megatron = ModuleType("megatron.core.parallel_state")
    megatron.__dict__.update(
        _TENSOR_MODEL_PARALLEL_GROUP=groups[0], _DATA_PARALLEL_GROUP_WITH_CP=groups[1], _EMBEDDING_GROUP=-100
    )
    deepspeed = ModuleType("deepspeed.utils.groups")
    deepspeed.__dict__.update(_EXPERT_PARALLEL_GROUP={"ep_size_2": groups[2]}, _WORLD_GROUP=None)
    pipeline = ModuleType("deepspeed.runtime.pipe.p2p")
    pipeline.__dict__["_grid"] = SimpleNamespace(pp_proc_group=groups[3], pp_group=[0, 4])
    for module in (megatron, deepspeed, pipeline):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    found = read_recorder({"world_size": 8, "groups": answers.process_groups("nccl")})
    assert found.axes == {"0": "tp", "1": "dp", "2": "ep", "3": "pp"}
    assert found.members["4"] == (0, 5)


def test_backend_without_counts_is_omitted_from_the_counts(world: Any) -> None:
    add(world, range(2), Group("default_pg", 4))
    add(world, range(2), Group("mesh_tp", None), "mpi")
    found = read_recorder({"world_size": 2, "groups": answers.process_groups("nccl")})
    assert found.counts == {0: Counts(4, None)}
    assert found.axes == {"0": "world", "1": "tp"}


def test_without_torch_no_groups_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", None)
    assert answers.process_groups("nccl") == []


def test_answer_about_a_thousand_ranks_is_small(world: Any) -> None:
    for number in range(400):
        add(world, range(number % 2, 1024, 1 + number % 2 * 7), Group("DATA_PARALLEL_GROUP", number))
    groups = answers.process_groups("nccl")
    assert len(json.dumps(groups)) < 256 << 10
    found = read_recorder({"world_size": 1024, "groups": groups})
    assert found.members["0"] == tuple(range(1024)) and found.members["1"] == tuple(range(1, 1024, 8))
    assert len(found.counts) == 400


def test_too_long_rank_lists_are_omitted(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_RANKS_BYTES", 9)
    for ranks in ([0, 2, 4], [0, 3, 6]):
        add(world, ranks, Group("mesh_dp"))
    assert [group.get("ranks") for group in answers.process_groups("nccl")] == ["0,2,4", None]
