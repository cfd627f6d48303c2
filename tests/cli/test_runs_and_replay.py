"""``stallwatch runs`` and ``stallwatch replay`` on folders that ``stallwatch run`` left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_rules.endings import Ending

Stallwatch = Callable[..., Result]
Process = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home() -> Path:
    return Path(os.environ["STALLWATCH_HOME"])


def test_ending_is_taken_from_the_incident_if_the_record_lacks_it(stallwatch: Stallwatch, home: Path) -> None:
    """The disk was full, so the run's own record could not be written."""
    now = time.time()
    full = RunFolder.create("full", ["train.py"], home=home, now=now - 100)
    full.write_info(state="training", pid=2**22 + 1)
    ending = Ending("failed", 1, detail="The command exited with 1.")
    messages: dict[str, Any] = {
        "run": "full",
        "kind": "ended",
        "rule": "unknown-failure",
        "episode": 1,
        "ending": ending,
    }
    full.append_incident(
        Incident(
            id="full/ended/unknown-failure/1",
            severity="critical",
            status="open",
            opened_at=now - 40,
            updated_at=now - 40,
            **messages,
        )
    )
    (row,) = [line.split("\t") for line in stallwatch("runs").stdout.splitlines()]
    assert (row[0], row[1], row[3], row[4]) == ("full", "failed", "1 min", "failed (exit code 1)")


def test_secret_in_the_name_of_a_run_is_masked(stallwatch: Stallwatch, home: Path) -> None:
    secret = "hf_" + "aBcDeFgHiJ" * 3 + "kLmN"
    RunFolder.create(f"sft-{secret}", ["train.py"], home=home, now=time.time())
    shown = stallwatch("runs").stdout
    assert shown.startswith("sft-") and secret not in shown


def test_runs_are_listed_with_their_states(stallwatch: Stallwatch, home: Path) -> None:
    now = time.time()
    ended = RunFolder.create("old", ["train.py"], home=home, now=now - 7200)
    ending = Ending("killed", 137, "SIGKILL", "", 3900.0)
    ended.write_info(state="failed", ended_at=now - 7200 + 3900, ending=ending)
    alive = RunFolder.create("new", ["train.py"], home=home, now=now)
    alive.write_info(state="training", endpoint="http://127.0.0.1:19400/metrics")
    gone = RunFolder.create("gone", ["train.py"], home=home, now=now - 9000)
    gone.write_info(state="training", pid=2**22 + 1)  # larger than any process id of Linux
    result = stallwatch("runs")
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[:2] for row in rows] == [["new", "training"], ["old", "failed"], ["gone", "agent gone"]]
    assert rows[0][5] == "http://127.0.0.1:19400/metrics"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now - 9000))
    here = socket.gethostname()
    assert rows[2][4:] == [f"not heard from since {since}", "-", here]
    assert rows[1][3:] == ["1 h 5 min", "killed by SIGKILL (exit code 137)", "-", here]


def test_killed_agent_counts_until_its_last_copy_of_the_output(stallwatch: Stallwatch, home: Path) -> None:
    """The agent rewrites its record less often than it copies the output."""
    began = time.time() - 9000
    for pid, (name, quiet) in enumerate((("killed", 4), ("copied-later", 8000)), 2**22 + 1):
        folder = RunFolder.create(name, ["train.py"], home=home, now=began)
        folder.write_info(state="training", pid=pid)
        (folder.path / "output.log").write_text("step 1\n")
        os.utime(folder.path / "output.log", (began + quiet, began + quiet))
    rows = {row[0]: row for line in stallwatch("runs").stdout.splitlines() if (row := line.split("\t"))}
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began + 4))
    assert (rows["killed"][3], rows["killed"][4]) == ("4 s", f"not heard from since {since}")
    assert rows["copied-later"][3] == "0 s"


@pytest.mark.parametrize(
    ("silent", "state", "expected"),
    [
        ({"n1": 130, "n2": 120}, "agent gone", "not heard from since {n2}"),
        ({"n1": 600, "n2": 120}, "agent gone", "not heard from since {n2}"),
        ({"n1": 130, "n2": 0}, "stalled", "n1 not heard from since {n1}"),
        ({"n1": 90, "n2": -30}, "stalled", "-"),  # their clocks differ from ours, and NFS caches the record
    ],
)
def test_silent_hosts_are_listed_with_the_time_of_their_last_post(
    stallwatch: Stallwatch,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    silent: dict[str, int],
    state: str,
    expected: str,
) -> None:
    """The last state from a killed agent, such as "stalled", is out of date."""
    identity = RunIdentity(key="5f" * 8, job="8123.0", origin="slurm")
    now = time.time()
    for host, seconds in silent.items():
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        folder = RunFolder.create("sft", ["x"], home=home, now=now - 700, identity=identity)
        folder.write_info(state="stalled", namespace=host, updated_at=now - seconds)
    monkeypatch.setattr(socket, "gethostname", lambda: "login")
    (row,) = [line.split("\t") for line in stallwatch("runs").stdout.splitlines()]
    since = {
        host: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now - seconds))
        for host, seconds in silent.items()
    }
    assert (row[1], row[4]) == (state, expected.format(**since))


def test_hosts_with_the_same_name_are_counted_separately(stallwatch: Stallwatch, home: Path) -> None:
    identity = RunIdentity(key="5f" * 8, job="8123.0", origin="slurm")
    now = time.time()
    for name in ("", "box-10.0.0.9"):
        folder = RunFolder.create("sft", ["x"], home=home, identity=identity, now=now)
        folder.write_info(host_name=name, namespace=f"of {name}")
    (row,) = [line.split("\t") for line in stallwatch("runs").stdout.splitlines()]
    assert row[6] == "2 hosts"


@pytest.mark.parametrize(
    ("ended", "state", "expected"),
    [
        ({}, "training", "-"),
        ({"n1": 0, "n2": 0}, "training", "-"),
        ({"n1": 0, "n2": 0, "n3": 0}, "finished", "finished"),
        ({"n1": 0, "n2": 1, "n3": 0}, "failed", "failed (exit code 1)"),
        ({"n2": 1}, "failed", "failed (exit code 1)"),
    ],
)
def test_run_over_hosts_is_one_row_and_its_hosts_have_their_folders(
    stallwatch: Stallwatch,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    ended: dict[str, int],
    state: str,
    expected: str,
) -> None:
    identity = RunIdentity(key="5f" * 8, job="8123.0", origin="slurm")
    now = time.time()
    for number, host in enumerate(("n1", "n2", "n3")):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        folder = RunFolder.create("sft", ["x"], home=home, now=now - 100 + number, identity=identity)
        code = ended.get(host)
        if code is None:
            folder.write_info(state="training", endpoint=f"http://{host}:19400/metrics", updated_at=now)
        else:
            kind = "failed" if code else "finished"
            folder.write_info(state=kind, ended_at=now - 40, ending=Ending(kind, code))
    (row,) = [line.split("\t") for line in stallwatch("runs").stdout.splitlines()]
    assert (row[0], row[1], row[4], row[6]) == ("sft-8123.0", state, expected, "3 hosts")
    alive = next((host for host in ("n3", "n2", "n1") if host not in ended), None)
    assert row[5] == (f"http://{alive}:19400/metrics" if alive else "-")
    rows = [line.split("\t") for line in stallwatch("runs", "sft-8123.0").stdout.splitlines()]
    assert {(row[0], row[6]) for row in rows} == {
        (str(home / "runs" / "sft-8123.0"), "n1"),
        (str(home / "runs" / "sft-8123.0+n2"), "n2"),
        (str(home / "runs" / "sft-8123.0+n3"), "n3"),
    }
    (row,) = [line.split("\t") for line in stallwatch("runs", "sft-8123.0+n2").stdout.splitlines()]
    assert row[6] == "n2"


def test_missing_run_is_an_error(stallwatch: Stallwatch, home: Path) -> None:
    RunFolder.create("sft", ["x"], home=home)
    result = stallwatch("runs", "dpo")
    assert result.exit_code == 2 and "is named dpo" in result.output


def test_interrupted_run_did_not_fail(stallwatch: Stallwatch, home: Path) -> None:
    folder = RunFolder.create("stopped", ["train.py"], home=home, now=1000.0)
    folder.write_info(state="failed", ended_at=1060.0, ending=Ending("interrupted", 130, "SIGINT"))
    row = stallwatch("runs").stdout.splitlines()[0].split("\t")
    assert (row[1], row[4]) == ("interrupted", "interrupted by Control+C or SIGINT (exit code 130)")
    folder.write_info(state="finished", ending=Ending("unknown", None))  # the agent was stopped
    row = stallwatch("runs").stdout.splitlines()[0].split("\t")
    assert (row[1], row[4]) == ("not watched", "unknown")


def test_empty_state_folder_is_reported(stallwatch: Stallwatch, home: Path) -> None:
    result = stallwatch("runs")
    assert (result.exit_code, result.stdout) == (0, "")
    assert str(home) in result.stderr


@pytest.mark.parametrize("command", [("runs",), ("alerts", "list")])
@pytest.mark.parametrize("below", ["", "/state"])
def test_file_in_place_of_the_state_folder_is_reported(
    stallwatch: Stallwatch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    below: str,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STALLWATCH_HOME", f"{tmp_path / 'file'}{below}")
    result = stallwatch(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"STALLWATCH_HOME: {tmp_path / 'file'} is a file" in result.stderr
    assert "no run" not in result.stderr and "Error" not in result.stderr


def test_replay_prints_the_same_bytes_and_has_the_same_exit_code(process: Process, home: Path) -> None:
    folder = RunFolder.create("r", ["train.py"], home=home, now=1000.0)
    (folder.path / "ranks").mkdir(exist_ok=True)
    (folder.path / "ranks" / "rank0.log").write_text(
        "1970-01-01T00:16:40.000000000Z stdout F step 1\n1970-01-01T00:16:41.000000000Z stderr F oops\n"
    )
    folder.write_info(state="failed", ended_at=1001.0, ending=Ending("failed", 3))
    result = process("replay", str(folder.path), "--speed", "1000")
    assert (result.returncode, result.stdout, result.stderr) == (3, "step 1\n", "oops\n")


def test_replay_of_an_unknown_run_is_an_error(stallwatch: Stallwatch, tmp_path: Path) -> None:
    result = stallwatch("replay", str(tmp_path))
    assert result.exit_code == 2
    assert str(tmp_path) in result.stderr and "Traceback" not in result.stderr


def test_replay_reports_a_log_without_records(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1 loss 0.5\n")
    result = stallwatch("replay", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "train.log contains no records in the format of `stallwatch run`" in result.stderr


def test_replay_of_a_run_without_output_is_empty(stallwatch: Stallwatch, home: Path) -> None:
    folder = RunFolder.create("r", ["train.py"], home=home, now=1000.0)
    (folder.path / "ranks").mkdir(exist_ok=True)
    (folder.path / "ranks" / "rank0.log").write_text("")
    folder.write_info(state="finished", ended_at=1000.0, ending=Ending("finished", 0))
    result = stallwatch("replay", str(folder.path))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_table_of_runs_shows_whole_names_and_no_empty_column(home: Path) -> None:
    """Default names differ only in their last characters."""
    names = [f"train-20261129-09080{number}" for number in range(3)]
    for name in names:
        folder = RunFolder.create(name, ["train.py"], home=home, now=time.time())
        folder.write_info(
            state="failed", ended_at=time.time(), ending=Ending("killed", 137, "SIGKILL"), pid=2**22 + 1
        )
    ours, theirs = os.openpty()
    code = "from stallwatch.cli import main; main()"
    command = [sys.executable, "-c", code, "runs"]
    subprocess.run(command, stdout=theirs, env={**os.environ, "COLUMNS": "80"}, timeout=120, check=True)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    assert all(name in shown for name in names)
    assert "hosts" in shown and "metrics" not in shown
