"""A run's folder: its name, its agent.json, and a home that cannot be written."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from stallwatch_exporter.runs.runfolder import (
    SILENT_HERE_SECONDS,
    SILENT_SECONDS,
    RunFolder,
    agent_alive,
    has_left,
    list_runs,
    read_info,
    run_name,
    sanitise,
)
from stallwatch_rules.endings import Ending
from stallwatch_rules.records import Diagnosis


@pytest.mark.parametrize(
    ("command", "stem"),
    [
        (["python", "train.py", "--lr", "1e-4"], "train"),
        (["torchrun", "--nproc-per-node", "8", "src/sft.py"], "sft"),
        (["bash", "launch.sh"], "launch"),
        (["llamafactory-cli", "train", "x.yaml"], "llamafactory-cli"),
        (["python", "-c", "print(1)"], "python"),
        (["python", "-m", "swift.cli.main"], "swift.cli.main"),
        ([], "run"),
        (["env", "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789", "sh", "-c", "x"], "sh"),
        (["env", "A=b", "C=d/e.py", "my-train", "x"], "my-train"),
        (["launch", "--password", "hunter22", "x"], "launch"),
        (["srun", "--api-key", "s3cr3t-key", "prog"], "prog"),
        (["sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"], "run"),
        (["env"], "run"),
    ],
)
def test_an_unnamed_run_is_called_after_its_script(command: list[str], stem: str) -> None:
    name = run_name(command, 1_795_221_432.0)
    assert re.fullmatch(rf"{re.escape(stem)}-202611\d\d-\d{{6}}", name)


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (["env", "HF_TOKEN=hf_x", "sh"], ["env", "HF_TOKEN=***", "sh"]),
        (["env", "MY_PASSWORD=a b,c'd", "sh"], ["env", "MY_PASSWORD=***", "sh"]),
        (["x", "--password", "a b c", "y"], ["x", "--password", "***", "y"]),
        (["x", "--api-key=a,b;c", "--lr", "1e-4"], ["x", "--api-key=***", "--lr", "1e-4"]),
        (["sh", "-c", "WANDB_API_KEY='s3 cr' python x.py"], ["sh", "-c", "WANDB_API_KEY='***' python x.py"]),
        (["x", "it's", "a b"], ["x", "it's", "a b"]),
    ],
)
def test_the_command_is_kept_without_its_secrets(tmp_path: Path, command: list[str], kept: list[str]) -> None:
    folder = RunFolder.create(None, command, home=tmp_path)
    info = read_info(folder.path)
    assert info is not None and info.command == kept


@pytest.mark.parametrize(
    ("name", "safe"),
    [("a b/c", "a-b-c"), ("../../etc", "etc"), ("训练 1", "训练-1"), ("...", "run"), ("", "run")],
)
def test_a_name_is_one_safe_folder(name: str, safe: str) -> None:
    assert sanitise(name) == safe


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    names = [RunFolder.create("sft", ["x"], home=tmp_path).run for _ in range(3)]
    assert names == ["sft", "sft-2", "sft-3"]


def test_a_tail_goes_on_in_the_folder_of_its_name(tmp_path: Path) -> None:
    assert {RunFolder.create("sft", [], home=tmp_path, reuse=True).run for _ in range(2)} == {"sft"}


def test_agent_json_is_read_back_and_leaves_no_half_written_file(tmp_path: Path) -> None:
    folder = RunFolder.create("sft", ["python", "sft.py"], home=tmp_path)
    ending = Ending(kind="failed", exit_code=1)
    folder.write_info(endpoint="http://127.0.0.1:19400/metrics", state="failed", ended_at=5.0, ending=ending)
    (info,) = list_runs(tmp_path)
    assert info == folder.info
    assert info.ending == ending
    assert sorted(entry.name for entry in folder.path.iterdir()) == ["agent.json", "ranks", "record.json"]
    folder.close(Diagnosis("failed"))
    assert sorted(entry.name for entry in folder.path.iterdir()) == ["agent.json", "diagnosis.json", "ranks"]


def test_broken_and_missing_records_are_left_out(tmp_path: Path) -> None:
    RunFolder.create("good", [], home=tmp_path)
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "agent.json").write_text("{")
    (tmp_path / "runs" / "empty").mkdir()
    assert [info.run for info in list_runs(tmp_path)] == ["good"]
    assert list_runs(tmp_path / "nowhere") == []


def test_newest_runs_come_first(tmp_path: Path) -> None:
    for name, now in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        RunFolder.create(name, [], home=tmp_path, now=now)
    assert [info.run for info in list_runs(tmp_path)] == ["c", "b", "a"]


def test_an_agent_is_alive_until_it_ended_or_its_process_is_gone(tmp_path: Path) -> None:
    folder = RunFolder.create("sft", ["x"], home=tmp_path)
    assert agent_alive(folder.info)
    # The kernel's time of its birth is no exact one (see rings.presence).
    folder.info.started_at = folder.info.updated_at = psutil.Process().create_time() - 3
    assert agent_alive(folder.info)
    folder.info.started_at = folder.info.updated_at = 1e9  # its number belongs to another process now
    assert not agent_alive(folder.info)
    folder.info.pid = 2**22 + 1
    assert not agent_alive(folder.info)
    folder.info.ended_at = 1.0
    assert not agent_alive(folder.info)


@pytest.mark.parametrize("elsewhere", [{"host": "another-host"}, {"namespace": "b00t/pid:[1]"}])
@pytest.mark.parametrize("pid", [os.getpid(), 2**22 + 1], ids=["of a process here", "of none"])
def test_an_agent_whose_process_is_none_of_ours_is_alive_while_it_writes(
    tmp_path: Path, elsewhere: dict[str, str], pid: int
) -> None:
    """A container may have our host's name and its number be that of a process here."""
    info = msgspec.structs.replace(RunFolder.create("sft", ["x"], home=tmp_path).info, pid=pid, **elsewhere)
    limit = SILENT_SECONDS if "host" in elsewhere else SILENT_HERE_SECONDS
    for since, alive in ((-10.0, True), (limit - 1, True), (limit + 1, False), (86400.0, False)):
        assert agent_alive(info, info.updated_at + since) is alive


@pytest.mark.parametrize(
    ("elsewhere", "writes", "left"),
    [
        ({"namespace": "b00t/pid:[1]"}, False, True),  # the container was started anew
        ({"namespace": "b00t/pid:[1]"}, True, False),  # two containers have one name
        ({"host": "another-host"}, False, False),
        ({}, False, False),  # this process is alive, whether it writes or not
    ],
)
def test_an_agent_of_our_hosts_name_has_left_where_it_does_not_write_again(
    tmp_path: Path, elsewhere: dict[str, str], writes: bool, left: bool
) -> None:
    folder = RunFolder.create("sft", ["x"], home=tmp_path)
    folder.write_info(updated_at=time.time() - 1, **elsewhere)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if writes and len(waited) == 3:
            folder.write_info(updated_at=time.time())

    assert has_left(folder.path, sleep) is left
    assert sum(waited) <= SILENT_HERE_SECONDS + 1 and bool(waited) is ("namespace" in elsewhere)


def test_an_older_versions_agent_is_believed_by_either_sign(tmp_path: Path) -> None:
    info = msgspec.structs.replace(RunFolder.create("sft", ["x"], home=tmp_path).info, namespace="")
    assert agent_alive(info, info.updated_at + 86400)
    info.pid = 2**22 + 1
    assert agent_alive(info, info.updated_at + 1) and not agent_alive(info, info.updated_at + 86400)
