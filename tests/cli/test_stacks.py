"""``stallwatch stacks``: real ranks of a watched run, and all obstacles to a stack sample."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result

from stallwatch_exporter.runs.runfolder import RunFolder, read_info
from stallwatch_exporter.stacks import gathering, targets
from stallwatch_rules.stacks.records import StackGroup, StallStacks
from stallwatch_rules.stacks.spans import spans_of

Stallwatch = Callable[..., Result]

#: Rank 1 stays in its own function until all ranks may continue.
TRAIN = """
import os, sys, time
from pathlib import Path
import stallwatch
folder = Path(sys.argv[1])
def reward():
    while not (folder / "end").exists(): time.sleep(0.05)
def wait_for_the_others(run):
    while not (folder / "end").exists():
        if (folder / "go").exists():
            run.step()
        time.sleep(0.05)
with stallwatch.training_run() as run:
    run.step()
    (folder / f"ready{os.environ['RANK']}").touch()
    if os.environ["RANK"] == "1" and not (folder / "go").exists():
        reward()
    wait_for_the_others(run)
"""


class Run:
    """A watched run of three ranks."""

    def __init__(self, folder: Path, agent: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.agent = agent

    @property
    def path(self) -> Path:
        return Path(os.environ["STALLWATCH_HOME"]) / "runs" / "sft"


@contextmanager
def running(folder: Path, *options: str, advances: bool = False) -> Iterator[Run]:
    (folder / "train.py").write_text(TRAIN)
    if advances:
        (folder / "go").touch()
    start = f'for rank in 0 1 2; do RANK=$rank "{sys.executable}" "{folder}/train.py" "{folder}" & done; wait'
    code = "from stallwatch.cli import main; main()"
    command = [sys.executable, "-c", code, "run", "--name", "sft", "--no-metrics", *options, "--"]
    with subprocess.Popen(
        [*command, "sh", "-c", start], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    ) as agent:
        try:
            wait_for(lambda: all((folder / f"ready{rank}").exists() for rank in range(3)))
            yield Run(folder, agent)
        finally:
            (folder / "end").touch()
            agent.terminate()
            agent.wait(60)


def wait_for(found: Callable[[], object]) -> None:
    until = time.monotonic() + 120
    while not found():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def test_ranks_are_selected_by_run_folder_or_process(stallwatch: Stallwatch, tmp_path: Path) -> None:
    with running(tmp_path) as run:
        info = read_info(run.path)
        assert info is not None
        for name in ([], ["sft"], [str(run.path)], [str(info.pid)]):
            shown = stallwatch("stacks", *name)
            assert shown.exit_code == 1, shown.output
            head, sentence, why, _, odd, *_ = shown.stdout.splitlines()
            assert head.startswith(f"ranks 0–2 of {'PID ' if name == [str(info.pid)] else 'sft'}")
            assert "rank 1 is at train.py:7 in reward" in sentence
            assert why == "rank 1: in different code than the other ranks, and not waiting for another rank."
            assert odd == "rank 1 (suspect): alive"
        found = msgspec.json.decode(stallwatch("stacks", "--json").stdout, type=StallStacks)
        assert (found.odd, found.why, found.hosts) == ([1], "elsewhere", {socket.gethostname(): "0-2"})
        every = stallwatch("stacks", "--all").stdout
        assert every.count("=== rank") == 2
        assert "rank 1" in stallwatch("stacks", "--language", "zh").stdout
        (run.folder / "end").touch()
        assert run.agent.poll() is None, "the agent watches on"


def test_progressing_run_has_no_blamed_rank(stallwatch: Stallwatch, tmp_path: Path) -> None:
    with running(tmp_path, advances=True):
        shown = stallwatch("stacks")
        assert (shown.exit_code, "The run is making progress" in shown.stdout) == (0, True), shown.output


def test_ranks_can_be_queried_after_their_agent_ended(stallwatch: Stallwatch, tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.agent.kill()
        run.agent.wait(60)
        assert "rank 1 is at train.py:7 in reward" in stallwatch("stacks", "sft").stdout


def test_py_spy_reads_ranks_without_a_probe(
    stallwatch: Stallwatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = [
        {"thread_name": "MainThread", "frames": [{"filename": "/w/train.py", "line": 7, "name": "reward"}]}
    ]
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(threads)}'\n")
    program.chmod(0o700)
    with running(tmp_path, "--no-probe"):
        monkeypatch.setattr(gathering, "find_py_spy", lambda: str(program))
        assert "ranks (0–2) are at train.py:7 in reward" in stallwatch("stacks").stdout
        monkeypatch.setattr(gathering, "find_py_spy", lambda: None)
        shown = stallwatch("stacks")
        assert (shown.exit_code, "pip install 'stallwatch[stacks]'" in shown.stderr) == (2, True)


def snapshot(folder: Path, host: str, *groups: StackGroup) -> str:
    """Return the output of ``--json`` on a host as a file."""
    ranks = [rank for group in groups for rank in group.ranks]
    found = StallStacks(1.8e9, 0.1, list(groups), hosts={host: spans_of(ranks)}, elsewhere=4 - len(ranks))
    (folder / f"{host}.json").write_bytes(msgspec.json.encode(found))
    return f"{host}.json"


def test_snapshots_of_several_hosts_are_combined(stallwatch: Stallwatch, tmp_path: Path) -> None:
    waits = {"kind": "collective", "what": "all_reduce", "place": "train.py:9 in step"}
    files = [
        snapshot(tmp_path, "n1", StackGroup([0, 1], **waits)),
        snapshot(
            tmp_path, "n2", StackGroup([2], **waits), StackGroup([3], "code", place="train.py:4 in score")
        ),
    ]
    shown = stallwatch("stacks", *files)
    assert shown.exit_code == 1 and "Rank 3 on n2 is at train.py:4 in score" in shown.stdout, shown.output
    found = msgspec.json.decode(stallwatch("stacks", *files, "--json").stdout, type=StallStacks)
    assert (found.odd, found.hosts) == ([3], {"n1": "0-1", "n2": "2-3"})


def test_flight_recorder_dumps_are_evaluated_like_snapshots(stallwatch: Stallwatch) -> None:
    dumps = sorted((Path(__file__).parents[1] / "logs/flight_recorder").glob("comm_lib*"))
    shown = stallwatch("stacks", *map(str, dumps))
    assert shown.exit_code == 1 and "rank 1 is not in a collective" in shown.stdout, shown.output
    (broken := Path("nccl_trace_rank_7")).write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    shown = stallwatch("stacks", str(broken))
    assert shown.exit_code == 2 and "nccl_trace_rank_7 is neither" in shown.stderr, shown.output
    broken.write_bytes(b"\x80\x02cos\nsystem\n.")
    shown = stallwatch("stacks", str(broken))
    assert shown.exit_code == 2 and "GLOBAL at byte 2; it was not loaded" in shown.stderr, shown.output


def test_invalid_snapshots_and_arguments_are_refused(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "n1.json").write_text("{}")
    for arguments, says in (
        (["n1.json"], "n1.json is neither the output"),
        (["sft", "n1.json"], "or only files"),
    ):
        shown = stallwatch("stacks", *arguments)
        assert shown.exit_code == 2 and says in shown.stderr, shown.output


def make_run(home: Path, name: str = "sft", **about: Any) -> Path:
    """Create the record of a run that the process `pid` watches; this process if it is not given."""
    folder = RunFolder.create(name, ["train.py"], home=home, now=time.time())
    folder.write_info(state="training", **about)
    return folder.path


@pytest.fixture
def childless() -> Iterator[int]:
    """Yield the id of a process without children; other tests may leave this process some."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


SAYS = [
    ({"ended_at": 1.8e9}, "run sft has ended; to see how the run ended, use stallwatch diagnose"),
    ({"host": "n7"}, "run sft is being watched on n7: run this command on that host"),
    ({"namespace": "x/pid:[1]"}, "run this command in that container"),
    ({"pid": 2**22 + 1}, "sft has no rank"),
    ({}, "sft has no rank"),
]


@pytest.mark.parametrize(("about", "says"), SAYS)
def test_run_without_ranks_on_this_host_is_an_error(
    stallwatch: Stallwatch, home: Path, childless: int, about: dict[str, Any], says: str
) -> None:
    make_run(home, **{"pid": childless, **about})
    shown = stallwatch("stacks", "sft")
    assert (shown.exit_code, says in shown.stderr) == (2, True), shown.stderr


def test_unknown_or_ambiguous_name_is_an_error(stallwatch: Stallwatch, home: Path) -> None:
    for arguments in ([], ["dpo"]):
        shown = stallwatch("stacks", *arguments)
        assert shown.exit_code == 2 and "specify a process instead: stallwatch stacks PID" in shown.stderr
    for number in range(10):
        make_run(home, f"sft{number}")
    assert "specify one of sft" in stallwatch("stacks").stderr
    assert "run dpo is not known on this host; watched runs: sft" in stallwatch("stacks", "dpo").stderr


def test_ended_or_foreign_process_is_an_error(
    stallwatch: Stallwatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "is not running" in stallwatch("stacks", str(2**22 + 1)).stderr
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4711)
    shown = stallwatch("stacks", str(os.getppid()))
    assert shown.exit_code == 2 and "run this command as" in shown.stderr


def test_process_without_ranks_is_an_error(stallwatch: Stallwatch) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            assert "has no rank" in stallwatch("stacks", str(other.pid)).stderr
        finally:
            other.kill()


@pytest.fixture
def home() -> Path:
    return Path(os.environ["STALLWATCH_HOME"])


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "AGAIN_SECONDS", 0.3)
