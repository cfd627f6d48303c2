"""An agent with a simulated clock, and a record of all its notifications."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.rings.probing import Probing
from stallwatch_exporter.running.capture import Chunk
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.watching.agent import Agent
from stallwatch_rules.endings import Ending
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis

sys.path.insert(0, str(Path(__file__).parent))  # for agentcases.py and everymetric.py

BEGIN = 1_795_000_000.0


@dataclass
class Watched:
    """A watched run with simulated time."""

    home: Path
    catalogue: Catalogue
    settings: ExporterSettings
    now: float = BEGIN
    sent: list[Incident] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder = RunFolder.create("sft", ["python", "sft.py"], home=self.home, now=self.now)
        self.agent = Agent(
            self.folder,
            self.settings,
            self.catalogue,
            [self.sent.append],
            clock=lambda: self.now,
            notice=self.notices.append,
        )

    def restart(self) -> None:
        """Replace the agent by a new one in the same folder."""
        self.folder = RunFolder.create("sft", ["python", "sft.py"], home=self.home, now=self.now, reuse=True)
        self.sent.clear()
        self.agent = Agent(
            self.folder, self.settings, self.catalogue, [self.sent.append], clock=lambda: self.now
        )

    def say(self, *lines: str, stream: str = "stdout") -> None:
        """Print lines as the command."""
        printed = "".join(f"{line}\n" for line in lines).encode()
        self.agent.feed(Chunk(stream, printed, self.now, stream=stream))

    def wait(self, seconds: float) -> None:
        """Advance the clock, with an agent check every second."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 1.0, end)
            self.agent.tick(self.now)

    def train(self, probes: list[Probe], steps: int, seconds: float = 2.0) -> None:
        """Let all ranks make `steps` steps of `seconds` each."""
        for _ in range(steps):
            self.wait(seconds)
            for probe in probes:
                probe.step(loss=0.5)
        self.wait(1.0)

    def steps(self, first: int, last: int, seconds: float = 4.0, total: int = 1000) -> None:
        """Print the lines of steps `first` to `last`, each after `seconds`."""
        for step in range(first, last + 1):
            self.wait(seconds)
            self.say(f"step {step}/{total} loss {2.0 / step:.4f}")

    def end(self, kind: str = "failed", exit_code: int | None = 1) -> Diagnosis:
        """End the command, and return the diagnosis."""
        return self.agent.end(
            Ending(kind=kind, exit_code=exit_code, detail="It ended."),  # type: ignore[arg-type]
            self.now,
        )

    @property
    def changes(self) -> list[tuple[str, str, str]]:
        """Return the incidents sent to sinks: kind/rule/episode, status and resolution, without updates."""
        found = [(each.id.split("/", 1)[1], each.status, each.resolution) for each in self.sent]
        return list(dict.fromkeys(found))

    def metric(self, name: str) -> float | None:
        """Return a value of the metrics page; `name` includes labels other than the run's."""
        for family in text_string_to_metric_families(generate_latest(self.agent.metrics.registry).decode()):
            for sample in family.samples:
                labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "run" and v)
                if name == (f"{sample.name}{{{labels}}}" if labels else sample.name):
                    return sample.value
        return None

    def kept(self, name: str) -> object:
        """Return a JSON file of the run's folder."""
        return json.loads((self.folder.path / name).read_text())

    @property
    def kept_incidents(self) -> list[Incident]:
        """Return the incidents in ``incidents.jsonl``."""
        lines = (self.folder.path / "incidents.jsonl").read_bytes().splitlines()
        return [msgspec.json.decode(line, type=Incident) for line in lines]


@pytest.fixture
def watch(tmp_path: Path, catalogue: Catalogue) -> Callable[..., Watched]:
    """Return a function that makes a watched run."""

    def make(**settings: object) -> Watched:
        return Watched(tmp_path / "home", catalogue, ExporterSettings(home=tmp_path / "home", **settings))  # type: ignore[arg-type]

    return make


@pytest.fixture
def run(watch: Callable[..., Watched]) -> Watched:
    """Return a watched run with the default settings."""
    return watch()


@pytest.fixture
def probed(watch: Callable[..., Watched], tmp_path: Path) -> tuple[Watched, list[Probe]]:
    """Return a watched run and the probes of its two ranks, with the same clock."""
    folder = tmp_path / "rings"
    folder.mkdir()
    run = watch()
    run.agent._probing = Probing(folder)
    return run, [Probe(folder, {"RANK": str(rank)}, lambda: run.now) for rank in (0, 1)]
