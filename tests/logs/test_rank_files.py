"""Snapshots and dumps in a folder: found beside logs, not taken for logs, and judged together."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from stallwatch_logs.inputs import InputProblem, Limits
from stallwatch_logs.log_files import LogFile, expand
from stallwatch_logs.rank_files import RankStates, read_rank_files
from stallwatch_rules.locale import render
from stallwatch_rules.stacks.records import StackGroup, StallStacks
from stallwatch_rules.stacks.sentences import sentence
from stallwatch_rules.stacks.spans import spans_of

#: Written by torch 2.13 with gloo: rank 1 of three sleeps in its own code before the sixth all_reduce.
REAL = Path(__file__).with_name("flight_recorder")


def read(*paths: Path) -> tuple[RankStates, list[LogFile], list[InputProblem]]:
    found: list[LogFile] = []
    logs, problems = expand(paths, rank_files=found)
    return read_rank_files(found, problems), logs, problems


def snapshot(path: Path, host: str, *groups: StackGroup, elsewhere: int = 0) -> None:
    ranks = [rank for group in groups for rank in group.ranks]
    hosts = {host: spans_of(ranks)}
    path.write_bytes(
        msgspec.json.encode(StallStacks(1.8e9, 0.1, list(groups), hosts=hosts, elsewhere=elsewhere))
    )


def test_real_dumps_reveal_the_missing_rank() -> None:
    states, logs, problems = read(REAL)
    assert (logs, problems, states.files) == ([], [], 4) and states.stacks is not None
    assert states.stacks.odd == [1] and states.stacks.hosts == {}
    assert "Ranks 0, 2 wait in all_reduce (train.py:25 in step, 6 collectives joined)" in render(
        sentence(states.stacks)
    )


def test_dumps_are_distinguished_from_logs(tmp_path: Path) -> None:
    shutil.copy(REAL / "comm_lib_trace_rank_1", tmp_path / "rccl_42_rank1")
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n")
    (tmp_path / "config.json").write_text('{"version": "4.41", "hidden_size": 7}')
    (tmp_path / "cut.json").write_text('{"version": "4.41", "hidden')
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x02}q\x01U\x0bbatch_labelq\x02K\x01s.")
    states, logs, problems = read(tmp_path)
    assert ([Path(log.name).name for log in logs], states.files, problems) == (["train.log"], 1, [])
    assert expand([tmp_path])[0][0].name.endswith("train.log")


@pytest.mark.parametrize("kind", ["zip", "tar", "gztar"])
def test_dumps_in_an_archive_are_read_with_its_logs(tmp_path: Path, kind: str) -> None:
    shutil.copytree(REAL, tmp_path / "run" / "dumps")
    (tmp_path / "run" / "train.log").write_text("step 1 loss 2.0\n")
    packed = Path(shutil.make_archive(str(tmp_path / "logs"), kind, tmp_path / "run"))
    states, logs, problems = read(packed)
    assert ([log.name[-9:] for log in logs], states.files, problems) == (["train.log"], 4, [])
    assert states.stacks is not None and states.stacks.odd == [1]
    (tmp_path / "run" / "train.log").unlink()
    states, logs, problems = read(Path(shutil.make_archive(str(tmp_path / "dumps"), kind, tmp_path / "run")))
    assert (logs, states.files, problems) == ([], 4, [])


def test_snapshots_and_dumps_of_several_hosts_are_combined(tmp_path: Path) -> None:
    """A rank with a snapshot is judged by it, because it has a stack."""
    waits = StackGroup([0], "collective", what="all_reduce", place="train.py:25 in step")
    snapshot(tmp_path / "n1.json", "n1", waits, elsewhere=2)
    (tmp_path / "node-2").mkdir()
    (tmp_path / "node-3").mkdir()
    shutil.copy(REAL / "comm_lib_trace_rank_0", tmp_path / "node-2")
    shutil.copy(REAL / "comm_lib_trace_rank_2", tmp_path / "node-2")
    shutil.copy(REAL / "comm_lib_trace_rank_1", tmp_path / "node-3")
    stacks = read(tmp_path)[0].stacks
    assert stacks is not None
    assert (stacks.hosts, stacks.odd) == ({"n1": "0", "node-2": "2", "node-3": "1"}, [1])
    assert "Rank 1 on node-3 is not in a collective" in render(sentence(stacks))


def test_hosts_of_ranks_come_from_the_logs(tmp_path: Path) -> None:
    found: list[LogFile] = []
    expand([REAL], rank_files=found)
    stacks = read_rank_files(found, [], {0: "n1", 1: "n2", 2: "n2"}).stacks
    assert stacks is not None and stacks.hosts == {"n1": "0", "n2": "1-2"}


BROKEN = {
    "comm_lib_trace_rank_1": (b"\x80\x02}.", "the file is not a dump of torch's flight recorder"),
    "trace.json": (b'{"version": "2.10", "entries": []}', "the name of the file does not contain a rank"),
    "n1.json": (b'{"time": 1, "seconds": 1, "groups": 3}', "the file is not a snapshot from this version"),
    "n2.json": (b'{"time": 1, "seconds": 1, "groups": [{"ranks": [], "kind": "code"}]}', "not a snapshot"),
    "n3.json": (b'{"time": 1, "seconds": 1, "groups": [{"ranks": [-2], "kind": "code"}]}', "not a snapshot"),
    "x_rank_3.json": (b'{"comm_lib_version": "", "entries": [', "the file is not valid JSON"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_unreadable_rank_files_are_reported(name: str, tmp_path: Path) -> None:
    content, why = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    states, _, problems = read(tmp_path)
    assert states.stacks is None and why in str(problems[0]), problems


def test_rank_files_that_were_not_read_in_time_are_reported() -> None:
    found: list[LogFile] = []
    expand([REAL], rank_files=found)
    problems: list[InputProblem] = []
    late = [replace(file, limits=Limits(until=0.0)) for file in found]
    assert read_rank_files(late, problems).stacks is None
    assert len(problems) == 4 and "--timeout" in str(problems[0])


def test_secrets_and_control_codes_in_rank_files_are_removed(tmp_path: Path) -> None:
    secret = "hf_" + "abcDEF123456789XYZqrstuvwxyzABCDEF"
    group = StackGroup([0], "code", place=f"train.py:1 in \x1b[31m{secret}", frames=[f"{secret}:1 in f"])
    snapshot(tmp_path / "n1.json", "n1", group)
    stacks = read(tmp_path)[0].stacks
    shown = json.dumps(msgspec.to_builtins(stacks, str_keys=True))
    assert secret not in shown and "u001b" not in shown
