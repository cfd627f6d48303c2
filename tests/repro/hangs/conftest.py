"""Ranks that train until a test makes one of them hang, and an agent that watches them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the programs and helpers beside these tests

from watched_ranks import FLOOR, HERE, RANKS, STEPS, Ranks, Watch, wait_for

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.rings.probing import Probing, with_probe
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.stacks import gathering
from stallwatch_exporter.watching.agent import Agent
from stallwatch_rules.pages.catalogue import Catalogue


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Yield ranks that are started once: importing torch takes longer than any of the hangs."""
    folder = tmp_path_factory.mktemp("hangs")
    rings = folder / "rings"
    rings.mkdir()
    os.mkfifo(folder / "native.pipe")
    os.mkfifo(folder / "save.pipe")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    environ = with_probe({**os.environ, "OMP_NUM_THREADS": "1"}, rings)
    with (folder / "output.log").open("wb") as output:
        launcher = subprocess.Popen(
            [*launch, str(HERE / "stuck_ranks.py"), str(folder)], env=environ, stdout=output, stderr=output
        )
    found = Ranks(folder, rings, launcher)
    try:
        wait_for(lambda: len(list(folder.glob("trains-*"))) == RANKS, launcher)
        found.pids = [int((folder / f"pid-{rank}").read_text()) for rank in range(RANKS)]
        yield found
    finally:
        (folder / "stop").touch()
        family = psutil.Process(launcher.pid).children(recursive=True) if launcher.poll() is None else []
        try:
            launcher.wait(60)
        except subprocess.TimeoutExpired:
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):  # the process has just ended
                    process.kill()
            launcher.kill()
            launcher.wait()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits of answers, so that a busy machine loses no rank's answer."""
    monkeypatch.setattr(gathering, "ANSWER_SECONDS", 30.0)
    monkeypatch.setattr(gathering, "COLLECTIVES_SECONDS", 30.0)


@pytest.fixture
def watch(ranks: Ranks, tmp_path: Path, catalogue: Catalogue) -> Iterator[Watch]:
    """Yield a new agent that has learned the pace of the ranks."""
    settings = ExporterSettings(home=tmp_path / "home", stall_floor_seconds=FLOOR, stall_start_seconds=FLOOR)
    folder = RunFolder.create("hang", ["torchrun", "train.py"], home=tmp_path / "home")
    messages: list[Incident] = []
    notices: list[str] = []
    probing = Probing(ranks.rings)
    begun = ranks.caught_up(probing)
    agent = Agent(folder, settings, catalogue, [messages.append], probing=probing, notice=notices.append)
    found = Watch(agent, folder.path, messages, ranks.launcher, notices)
    counted = agent.metrics.registry.get_sample_value
    found.until(lambda: (counted("stallwatch_steps_total", {"run": folder.run}) or 0) > begun + STEPS)
    yield found
