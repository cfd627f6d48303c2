"""Ray 2.60: one of two actors hangs in its own code; the driver waits for both in ``ray.get``."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ports import free_port
from processes import STALLWATCH
from waiting import wait_until

from stallwatch_exporter.watching.incidents import read_incidents

pytest.importorskip("ray")

DRIVER = """
import os, sys, time
from pathlib import Path

import ray
import stallwatch

control = Path(sys.argv[2])


@ray.remote(num_cpus=0)
class Trainer:
    def __init__(self, rank):
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
        import torch

        self.rank = rank
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self, number):
        import torch

        if self.rank == 1 and number == 70:
            self.score()
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()
        time.sleep(0.05)

    def score(self):
        (control / "hangs").touch()
        while not (control / "healed").exists():
            time.sleep(0.2)


ray.init(address=sys.argv[1], runtime_env=stallwatch.ray_runtime_env(), log_to_driver=False)
actors = [Trainer.remote(rank) for rank in range(2)]
for number in range(75):
    ray.get([actor.step.remote(number) for actor in actors])
    print("step", number, flush=True)
"""


@pytest.fixture
def cluster() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the address of a running Ray cluster of one node, and the variables of its clients."""
    port = free_port()
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("STALLWATCH_")},
        **own,
    }
    at = ["--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=1", "--include-dashboard=false"]
    with subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *at],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as head:
        assert head.stdout is not None
        try:
            started = any(b"Ray runtime started" in line for line in head.stdout)
            assert started
            yield f"127.0.0.1:{port}", environ
        finally:
            family = [*psutil.Process(head.pid).children(recursive=True), psutil.Process(head.pid)]
            for process in family:
                process.kill()


def blamed(home: Path) -> list[str]:
    """Return the places of the blamed ranks, from each stall that names a rank."""
    found = []
    for run in home.glob("runs/*"):
        for stacks in (
            read_incident.stacks for read_incident in read_incidents(run) if read_incident.stacks is not None
        ):
            found += [
                f"{group.ranks} {group.place}"
                for group in stacks.groups
                if set(group.ranks) & set(stacks.odd)
            ]
    return found


def test_hang_in_an_actor_names_the_actor(tmp_path: Path, cluster: tuple[str, dict[str, str]]) -> None:
    address, environ = cluster
    (driver := tmp_path / "driver.py").write_text(DRIVER)
    home = tmp_path / "home"
    environ |= {"STALLWATCH_HOME": str(home), "STALLWATCH_STALL_FLOOR_SECONDS": "5"}
    command = [*STALLWATCH, "run", "--no-metrics", "--", sys.executable, str(driver), address, str(tmp_path)]
    with subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as run:
        try:
            wait_until(lambda: run.poll() is not None or (tmp_path / "hangs").exists())
            wait_until(lambda: run.poll() is not None or blamed(home))
        finally:
            (tmp_path / "healed").touch()
            run.communicate(timeout=120)
    assert run.returncode == 0
    (place,) = blamed(home)
    assert place.startswith("[1] driver.py:") and place.endswith("score")
