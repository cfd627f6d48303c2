"""Stored folders of runs: those that may belong to one training, and those that do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from stallwatch_exporter.postmortem.run_folders import TOGETHER, start_groups, stored_runs_of
from stallwatch_exporter.runs.runfolder import AgentInfo
from stallwatch_logs.log_files import LogFile

DAY = 86_400.0


def info(
    started: float, seconds: float = 3600.0, command: str = "torchrun train.py", **more: object
) -> AgentInfo:
    facts: dict[str, object] = {"host": "a", **more}
    return AgentInfo(
        run="x",
        pid=1,
        command=command.split(),
        cwd="/w",
        started_at=started,
        updated_at=started + seconds,
        **facts,  # type: ignore[arg-type]
    )


def test_successive_runs_are_separate() -> None:
    assert start_groups({"b": info(2 * DAY), "a": info(DAY), "c": info(3 * DAY)}) == [["a"], ["b"], ["c"]]
    ended = info(0.0, seconds=9999.0, ended_at=50.0)
    assert start_groups({"a": ended, "b": info(60.0)}) == [["a"], ["b"]]  # restarted at once


def test_slow_end_of_one_host_does_not_join_two_starts() -> None:
    """A pod restarts at once, while the other pods still wait for it in a collective."""
    runs = {
        "a1": info(0.0, seconds=1000.0, key="k", host="a"),
        "b1": info(1.0, seconds=1600.0, key="k", host="b"),
        "a2": info(1005.0, key="k", host="a"),
        "b2": info(1610.0, key="k", host="b"),
    }
    assert start_groups(runs) == [["a1", "b1"], ["a2", "b2"]]


def test_nodes_started_together_with_one_command_are_one_run() -> None:
    nodes = {
        f"n{rank}": info(rank * TOGETHER / 2, command=f"torchrun --node-rank {rank} train.py")
        for rank in range(4)
    }
    assert start_groups(nodes) == [["n0", "n1", "n2", "n3"]]
    assert start_groups(nodes | {"late": info(7 * TOGETHER, command="torchrun --node-rank 0 train.py")}) == [
        ["n0", "n1", "n2", "n3"],
        ["late"],
    ]


def test_different_commands_or_folders_are_separate_runs() -> None:
    assert start_groups({"a": info(0.0), "b": info(1.0, command="torchrun eval.py")}) == [["a"], ["b"]]
    at_home, at_work = info(0.0), info(1.0)
    at_home.cwd, at_work.cwd = "/home/u", "/srv/u"
    assert start_groups({"a": at_home, "b": at_work}) == [["a"], ["b"]]
    at_home.cwd, at_work.cwd = "/scratch/node7/sft", "/scratch/node12/sft"
    assert start_groups({"a": at_home, "b": at_work}) == [["a", "b"]]


def files(*paths: str) -> list[LogFile]:
    return [LogFile(path, None, False, 0, lambda: iter(()), path) for path in paths]


def folder(path: Path, given: AgentInfo | None) -> list[str]:
    (path / "ranks").mkdir(parents=True)
    (path / "agent.json").write_bytes(msgspec.json.encode(given) if given is not None else b"{")
    return [str(path / "output.log"), str(path / "ranks" / "rank0.log")]


def test_files_belong_to_the_run_of_their_folder(tmp_path: Path) -> None:
    first, second = folder(tmp_path / "a", info(0.0)), folder(tmp_path / "b", info(DAY))
    unread = folder(tmp_path / "c", None)
    found = stored_runs_of(files(*first, *second, *unread, str(tmp_path / "x.log")))
    assert found.jobs == dict.fromkeys(first, "a") | dict.fromkeys(second, "b")
    assert found.folders == {"a": [str(tmp_path / "a")], "b": [str(tmp_path / "b")]}
    assert stored_runs_of(files(*first)) == ({}, {})


def test_runs_with_the_same_name_are_distinguished_by_path(tmp_path: Path) -> None:
    first, second = folder(tmp_path / "1" / "a", info(0.0)), folder(tmp_path / "2" / "a", info(DAY))
    found = stored_runs_of(files(*first, *second)).folders
    assert list(found) == [str(tmp_path / "1" / "a"), str(tmp_path / "2" / "a")]


def test_runs_with_the_same_name_are_distinguished_by_archive(tmp_path: Path) -> None:
    members = []
    for number, started in enumerate((0.0, DAY)):
        copy = tmp_path / str(number) / "run"
        folder(copy, info(started))
        (member,) = files(f"{number}.tgz!run/ranks/rank0.log")
        members.append(replace(member, path="", folder=str(copy)))
    assert list(stored_runs_of(members).folders) == ["0.tgz!run", "1.tgz!run"]
