"""Real launchers that start ranks on other hosts: the suggested command gives every rank an agent."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import namespaces
import pytest
import sshd
from namespaces import Hosts, environment
from waiting import wait_until

from stallwatch.integrations.deepspeed import command_of
from stallwatch_exporter.cluster.elsewhere import advice
from stallwatch_exporter.settings import JoinSettings

RANK = """
import os, sys, time
from pathlib import Path

control = Path(__file__).parent
rank = os.environ["RANK"]
(control / f"rank{rank}").write_text(" ".join(sys.argv[1:]))
while not (control / "done").exists():
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("given", "options", "training"),
    [
        ("--local_rank=1 train.py --lr 1", "", "train.py --local_rank=1 --lr 1"),
        ("train.py --lr 1", "", "train.py --lr 1"),
        ("--local_rank=0 -m pkg.train --lr 1", "", "-m pkg.train --local_rank=0 --lr 1"),
        (
            "--local_rank=0 --name sft --no-metrics --run=x train.py",
            "--name sft --no-metrics --run=x ",
            "train.py --local_rank=0",
        ),
    ],
)
def test_script_receives_the_variables_of_deepspeed(given: str, options: str, training: str) -> None:
    command = shlex.join(command_of(given.split(), "python"))
    assert command == f"python -m stallwatch run {options}-- python -u {training}"


def agents(home: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(home.glob("runs/*/agent.json"))]


@pytest.mark.skipif(
    bool(namespaces.lacking() or sshd.lacking()), reason=namespaces.lacking() or sshd.lacking()
)
@pytest.mark.repro
def test_deepspeed_over_pdsh_has_an_agent_for_each_rank(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    (work / "hosts").write_text("n1 slots=1\nn2 slots=1\n")
    (work / "train.py").write_text(RANK)
    own = {"STALLWATCH_HOME": str(home), "STALLWATCH_CACHE": os.environ.get("STALLWATCH_CACHE", "")}
    (work / ".deepspeed_env").write_text("".join(f"{name}={value}\n" for name, value in own.items() if value))
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner"]
    options = ["--hostfile", "hosts", "--master_addr", "n1", "--no_ssh_check"]
    command = [*launcher, *options, "train.py", "--lr", "1"]
    line = advice(command, {}, JoinSettings(), read=lambda path: (work / path).read_text())
    better = shlex.split(line.partition("to watch all ranks: ")[2])
    with (
        Hosts(2, tmp_path / "hosts", private=[sshd.PRIVATE]) as hosts,
        sshd.sshd(hosts, tmp_path / "ssh") as keys,
    ):
        environ = environment({**keys, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
        launched = hosts.hosts["n1"].start(
            "sh",
            "-c",
            'cd "$0" && exec "$@"',
            str(work),
            *better,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(lambda: launched.poll() is not None or len(agents(home)) == 2)
            wait_until(lambda: launched.poll() is not None or (work / "rank1").exists())
        finally:
            (work / "done").touch()
            printed = launched.communicate(timeout=120)[0].decode()
    assert launched.returncode == 0, printed
    assert [(work / f"rank{rank}").read_text() for rank in (0, 1)] == ["--local_rank=0 --lr 1"] * 2
    first, second = agents(home)
    assert first["key"] == second["key"] != "" and {first["host"], second["host"]} == {"n1", "n2"}
    assert {first["state"], second["state"]} == {"finished"}
