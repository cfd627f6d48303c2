"""A run's folder: its name, its agent.json, and a home that cannot be written."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest
from clustercases import incident
from waiting import wait_until

from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.runs import runfolder
from stallwatch_exporter.runs.naming import run_name, sanitise
from stallwatch_exporter.runs.reserve import append_whole
from stallwatch_exporter.runs.runfolder import (
    SILENT_HERE_SECONDS,
    SILENT_SECONDS,
    RunFolder,
    agent_alive,
    by_run,
    folders_of,
    has_left,
    kept_runs,
    latest_folder,
    list_runs,
    mark_reported,
    read_info,
)
from stallwatch_exporter.settings import temporary_home
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
def test_unnamed_run_is_named_after_its_script(command: list[str], stem: str) -> None:
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
def test_command_is_stored_without_secrets(tmp_path: Path, command: list[str], kept: list[str]) -> None:
    folder = RunFolder.create(None, command, home=tmp_path)
    info = read_info(folder.path)
    assert info is not None and info.command == kept


@pytest.mark.parametrize(
    ("name", "safe"),
    [("a b/c", "a-b-c"), ("../../etc", "etc"), ("训练 1", "训练-1"), ("...", "run"), ("", "run")],
)
def test_name_is_sanitized_to_one_folder(name: str, safe: str) -> None:
    assert sanitise(name) == safe


def test_name_in_use_gets_a_number(tmp_path: Path) -> None:
    names = [RunFolder.create("sft", ["x"], home=tmp_path).run for _ in range(3)]
    assert names == ["sft", "sft-2", "sft-3"]


def test_tail_reuses_the_folder_of_its_name(tmp_path: Path) -> None:
    assert {RunFolder.create("sft", [], home=tmp_path, reuse=True).run for _ in range(2)} == {"sft"}


def test_agent_json_round_trips_without_partial_files(tmp_path: Path) -> None:
    folder = RunFolder.create("sft", ["python", "sft.py"], home=tmp_path)
    ending = Ending(kind="failed", exit_code=1)
    folder.write_info(endpoint="http://127.0.0.1:19400/metrics", state="failed", ended_at=5.0, ending=ending)
    (info,) = list_runs(tmp_path)
    assert info == folder.info
    assert info.ending == ending
    assert sorted(entry.name for entry in folder.path.iterdir()) == ["agent.json", "ranks", "record.json"]
    folder.close(Diagnosis("failed"))
    assert sorted(entry.name for entry in folder.path.iterdir()) == ["agent.json", "diagnosis.json", "ranks"]


def test_invalid_and_missing_records_are_skipped(tmp_path: Path) -> None:
    RunFolder.create("good", [], home=tmp_path)
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "agent.json").write_text("{")
    (tmp_path / "runs" / "empty").mkdir()
    assert [info.run for info in list_runs(tmp_path)] == ["good"]
    assert list_runs(tmp_path / "nowhere") == []


def test_newest_runs_are_listed_first(tmp_path: Path) -> None:
    for name, now in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        RunFolder.create(name, [], home=tmp_path, now=now)
    assert [info.run for info in list_runs(tmp_path)] == ["c", "b", "a"]


def test_agent_is_alive_until_its_end_or_death(tmp_path: Path) -> None:
    folder = RunFolder.create("sft", ["x"], home=tmp_path)
    assert agent_alive(folder.info)
    # The kernel's start time of a process is not exact (see rings.presence).
    folder.info.started_at = folder.info.updated_at = psutil.Process().create_time() - 3
    assert agent_alive(folder.info)
    folder.info.started_at = folder.info.updated_at = 1e9  # the process id belongs to another process now
    assert not agent_alive(folder.info)
    folder.info.pid = 2**22 + 1
    assert not agent_alive(folder.info)
    folder.info.ended_at = 1.0
    assert not agent_alive(folder.info)


@pytest.mark.parametrize("elsewhere", [{"host": "another-host"}, {"namespace": "b00t/pid:[1]"}])
@pytest.mark.parametrize("pid", [os.getpid(), 2**22 + 1], ids=["of a process here", "of none"])
def test_foreign_agent_is_alive_while_it_writes(tmp_path: Path, elsewhere: dict[str, str], pid: int) -> None:
    """A container may have this host's name, and its process id may be that of a process here."""
    info = msgspec.structs.replace(RunFolder.create("sft", ["x"], home=tmp_path).info, pid=pid, **elsewhere)
    limit = SILENT_SECONDS if "host" in elsewhere else SILENT_HERE_SECONDS
    for since, alive in ((-10.0, True), (limit - 1, True), (limit + 1, False), (86400.0, False)):
        assert agent_alive(info, info.updated_at + since) is alive


@pytest.mark.parametrize(
    ("elsewhere", "writes", "left"),
    [
        ({"namespace": "b00t/pid:[1]"}, False, True),  # the container was restarted
        ({"namespace": "b00t/pid:[1]"}, True, False),  # two containers have the same name
        ({"host": "another-host"}, False, False),
        ({}, False, False),  # this process is alive even if it does not write
    ],
)
def test_agent_with_our_host_name_is_dead_without_new_records(
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


def test_agent_of_an_older_version_is_alive_by_either_sign(tmp_path: Path) -> None:
    info = msgspec.structs.replace(RunFolder.create("sft", ["x"], home=tmp_path).info, namespace="")
    assert agent_alive(info, info.updated_at + 86400)
    info.pid = 2**22 + 1
    assert agent_alive(info, info.updated_at + 1) and not agent_alive(info, info.updated_at + 86400)


SLURM = RunIdentity(key="5f" * 8, job="8123.0", origin="slurm", node=1)
Agent = Callable[..., RunFolder]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    def start(
        host: str, identity: RunIdentity = SLURM, name: str | None = "sft", **more: object
    ) -> RunFolder:
        monkeypatch.setattr(socket, "gethostname", lambda: host)
        home = more.pop("home", tmp_path)
        return RunFolder.create(name, ["train.py"], home=home, identity=identity, **more)  # type: ignore[arg-type]

    return start


def test_agents_of_one_run_share_a_label_and_have_separate_folders(agent: Agent, tmp_path: Path) -> None:
    folders = [agent(host) for host in ("n1", "n2", "n3", "n3", "n3")]
    assert {folder.run for folder in folders} == {"sft-8123.0"}
    names = ["sft-8123.0", "sft-8123.0+n2", "sft-8123.0+n3", "sft-8123.0+n3.2", "sft-8123.0+n3.3"]
    assert [folder.path.name for folder in folders] == names
    for folder in folders:
        info = read_info(folder.path)
        assert info is not None and (info.run, info.folder) == ("sft-8123.0", folder.path.name)
        assert (info.job, info.attempt, info.key, info.node) == ("8123.0", 0, SLURM.key, 1)
    assert {(info.run, info.folder) for info in list_runs(tmp_path)} == {
        ("sft-8123.0", name) for name in names
    }
    assert [path.name for path, _ in folders_of(tmp_path, "sft-8123.0")] == names


def test_separate_homes_have_the_same_label_and_folder(agent: Agent, tmp_path: Path) -> None:
    folders = [agent(host, home=tmp_path / host) for host in ("n1", "n2")]
    assert {(folder.run, folder.path.name) for folder in folders} == {("sft-8123.0", "sft-8123.0")}


def test_unnamed_run_over_hosts_is_named_after_its_script(agent: Agent) -> None:
    assert agent("n1", name=None).run == "train-8123.0"


def test_restart_of_a_job_has_another_label(agent: Agent) -> None:
    again = msgspec.structs.replace(SLURM, key="60" * 8, attempt=1)
    assert [agent("n1", item).run for item in (SLURM, again)] == ["sft-8123.0", "sft-8123.0-r1"]


def test_host_name_cannot_leave_the_state_folder(agent: Agent, tmp_path: Path) -> None:
    folders = [agent("../../x/y\n") for _ in range(2)]
    assert folders[1].path.name == "sft-8123.0+x-y" and folders[1].path.parent == tmp_path / "runs"


@pytest.mark.parametrize("claimed", ["../../etc", "sft-8123", "sft-8123.0+", "sft-8123.0+n2/..", "other", ""])
def test_label_of_a_record_must_match_its_folder(agent: Agent, tmp_path: Path, claimed: str) -> None:
    agent("n1")
    folder = agent("n2")
    folder.write_info(run=claimed, folder="../../etc")
    (info,) = [list_run for list_run in list_runs(tmp_path) if list_run.folder != "sft-8123.0"]
    assert (info.run, info.folder) == ("sft-8123.0+n2", "sft-8123.0+n2")
    assert [path.name for path, _ in folders_of(tmp_path, "sft-8123.0")] == ["sft-8123.0"]


def test_handed_over_incidents_are_recorded_by_their_agent_only(agent: Agent, tmp_path: Path) -> None:
    for host in ("n1", "n2"):
        agent(host).write_info(reported=False)
    for path, info in kept_runs(tmp_path):
        if path.name.endswith("+n2"):
            mark_reported(path, info)
    assert {info.host: info.reported for info in list_runs(tmp_path)} == {"n1": False, "n2": True}


def test_run_is_listed_once_per_start(agent: Agent, tmp_path: Path) -> None:
    for now, hosts in ((1000.0, ("n1", "n2")), (9000.0, ("n2", "n1", "n3"))):
        for host in hosts:
            agent(host, now=now).write_info(ended_at=now + 60)
    for now in (5000.0, 5001.0):
        RunFolder.create("alone", [], home=tmp_path, now=now)
    groups = [sorted(path.name for path, _ in group) for group in by_run(kept_runs(tmp_path))]
    again = ["sft-8123.0+n1", "sft-8123.0+n2.2", "sft-8123.0+n3"]
    assert groups == [again, ["alone-2"], ["alone"], ["sft-8123.0", "sft-8123.0+n2"]]


def test_start_is_separate_if_a_host_of_the_last_one_ends_late(agent: Agent, tmp_path: Path) -> None:
    for host, start, end in (
        ("n1", 0.0, 60.0),
        ("n2", 1.0, 600.0),
        ("n1", 65.0, 900.0),
        ("n2", 610.0, 900.0),
    ):
        agent(host, now=1000.0 + start).write_info(ended_at=1000.0 + end)
    groups = [sorted(path.name for path, _ in group) for group in by_run(kept_runs(tmp_path))]
    assert groups == [["sft-8123.0+n1", "sft-8123.0+n2.2"], ["sft-8123.0", "sft-8123.0+n2"]]


def test_agent_with_a_full_folder_continues_elsewhere(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "tmp"
    elsewhere.mkdir(mode=0o700)
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    folders = [agent(host, home=home, now=time.time() + number) for number, host in enumerate(("n1", "n2"))]
    home.rename(tmp_path / "unmounted")
    for folder in folders:
        folder.keep_end(Diagnosis("failed"))
        assert folder.run == "sft-8123.0" and folder.path.is_relative_to(temporary_home(home))
    (tmp_path / "unmounted").rename(home)
    for name, folder in zip(("sft-8123.0", "sft-8123.0+n2"), folders, strict=True):
        assert folder.path.name == name
        assert latest_folder(home / "runs" / name) == folder.path


def test_hanging_disk_does_not_block_the_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    def hangs(path: Path, data: bytes) -> None:
        goes_on.wait(30)
        append_whole(path, data)

    monkeypatch.setattr(runfolder, "append_whole", hangs)
    monkeypatch.setattr(runfolder, "_WRITE_SECONDS", 0.01)
    folder = RunFolder.create("sft", ["python"], home=tmp_path)
    kept = folder.path / runfolder.RUN_INCIDENTS
    for number in (1, 2):
        folder.append_run_incident(incident(1.0, number))
    assert not kept.exists()
    goes_on.set()
    wait_until(lambda: kept.exists() and kept.read_bytes().count(b"\n") == 2)
    monkeypatch.setattr(runfolder, "_WRITE_SECONDS", 30.0)
    folder.append_run_incident(incident(1.0, 3))
    assert [json.loads(line)["episode"] for line in kept.read_text().splitlines()] == [1, 2, 3]
