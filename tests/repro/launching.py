"""Launches of the reproductions: plain, with a probe in the ranks, or in front of the agent."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forkserver import Forks
from record import environment

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.rings.probing import with_probe
from stallwatch_exporter.rings.reader import RingReader
from stallwatch_exporter.running.command import run_command
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_rules.pages.catalogue import Catalogue

HERE = Path(__file__).resolve().parent
#: variables for Hugging Face's libraries
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

SHORT = ("--steps", "20")  #: options of healthy runs


def torchrun(*options: str, ranks: int = 2) -> list[str]:
    """Return the torchrun command for a program of this folder, from any working folder."""
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *options]


SERVERS: list[Forks] = []  #: fork servers that were started; the folder's conftest ends them


@functools.cache
def forks(*names: str) -> Forks:
    """Return the server that all tests with these imports share."""
    SERVERS.append(Forks(environment(None) | OFFLINE, *names))
    return SERVERS[-1]


def forked(*options: str, ranks: int = 2, logs: Path | None = None, own_family: bool = False) -> list[str]:
    """Return the launch with forked ranks (see forked.py), for tests of the ranks alone.

    With `own_family`, the ranks descend from the launch, for tests that find ranks by their parents.
    """
    away = () if logs is None else ("--log-dir", str(logs))
    options = ("--ranks", str(ranks), *away, *options)
    if own_family:
        return ["env", "STALLWATCH_PROBE=0", sys.executable, str(HERE / "forked.py"), *options]
    return forks().command(*options)


def launch(command: list[str], env: dict[str, str], seconds: float = 160) -> tuple[int, str]:
    """Run a launch in the programs' folder; always end its ranks with it."""
    child = subprocess.Popen(
        command, cwd=HERE, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output, _ = child.communicate(timeout=seconds)
    finally:
        if (
            child.poll() is None
        ):  # SIGTERM, not SIGKILL: torchrun then ends its ranks, which have their own sessions
            os.killpg(child.pid, signal.SIGTERM)
            child.wait(timeout=30)
    return child.returncode, output.decode(errors="replace")


def printed(logs: Path) -> str:
    """Return the output of all ranks in torchrun's files."""
    return "\n".join(log.read_text() for log in rank_logs(logs))


def rank_logs(logs: Path) -> list[Path]:
    """Return torchrun's files, two for each rank."""
    return sorted(logs.glob("*/attempt_0/*/std*.log"))


@dataclass(frozen=True)
class Probed:
    """A run without an agent: the output and the rings of its ranks are in files."""

    folder: Path
    code: int
    launcher: str  #: output of torchrun itself

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def rings(self) -> list[RingReader]:
        return [RingReader(path) for path in sorted(self.folder.glob("rings/*.ring"))]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of the ranks."""
        texts = (path.read_text() for path in self.folder.glob("rings/*.jsonl"))
        return _events((line for text in texts for line in text.splitlines()), kind)


def probed(folder: Path, program: str, *options: str, ranks: int = 2) -> Probed:
    """Run a program whose ranks have a probe."""
    rings = folder / "rings"
    rings.mkdir(parents=True)
    env = with_probe(environment(None), rings)
    return Probed(folder, *launch(forked(program, *options, ranks=ranks, logs=folder / "logs"), env))


class Watched:
    """A run in front of the agent; `sent` holds its incidents at each change."""

    def __init__(self, home: Path, catalogue: Catalogue) -> None:
        self.home, self.hold = home, home / "seen"
        self.sent: list[Incident] = []
        self.code: int | None = None
        self._catalogue = catalogue
        home.mkdir()

    def run(
        self,
        program: str,
        *options: str,
        ranks: int = 1,
        hidden: bool = False,
        own_family: bool = False,
        **settings: float,
    ) -> int:
        """Run a program; with `hidden`, its ranks print into files that the agent does not read."""
        logs = self.logs if hidden else None
        command = forked(str(HERE / program), *options, ranks=ranks, logs=logs, own_family=own_family)
        found = ExporterSettings(home=self.home, port=0, linger_seconds=0.0, **settings)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment(None).items():
                patch.setenv(name, value)
            self.code = run_command(command, found, [self.tell], self._catalogue)
        return self.code

    def tell(self, incident: Incident) -> None:
        """Release all waits for this incident."""
        self.sent.append(incident)
        self.hold.write_text("")

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def diagnosis(self) -> Any:
        return json.loads(next(self.home.glob("runs/*/diagnosis.json")).read_text())

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of the ranks, as the agent stored them."""
        return _events(next(self.home.glob("runs/*/events.jsonl")).read_text().splitlines(), kind)


def _events(lines: Iterable[str], kind: str) -> list[dict[str, Any]]:
    return [event for event in map(json.loads, lines) if event["kind"] == kind]
