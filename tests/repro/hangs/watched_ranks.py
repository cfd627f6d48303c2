"""Ranks that are told to hang, and an agent that watches them; for the tests beside this file."""

from __future__ import annotations

import contextlib
import select
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.watching.agent import Agent

HERE = Path(__file__).resolve().parent
RANKS = 3
FLOOR = 2.0  # seconds: steps take 40 ms, and this machine may be busy
STEPS = 40  # after which their rhythm is known
TICK = 0.2
PATIENCE = 150.0
LATE = 30.0  # seconds after its threshold: on a busy machine; how soon it comes is for ``make bench-stall``


@dataclass
class Ranks:
    """The ranks' processes, and the folder by which they are told to hang."""

    folder: Path
    rings: Path
    launcher: subprocess.Popen[bytes]
    pids: list[int] = field(default_factory=list)

    def hold(self, hang: str, rank: int = 1) -> None:
        """From its next step on, the rank hangs."""
        (self.folder / f"{hang}-{rank}").touch()

    def let_go(self, hang: str, rank: int = 1) -> None:
        """Let it go on."""
        (self.folder / f"{hang}-{rank}").unlink()

    def drain(self, pipe: str) -> None:
        """Read what a rank wants to write, until it writes no more."""
        with (self.folder / pipe).open("r+b", buffering=0) as storage:
            while select.select([storage], [], [], 1.0)[0]:
                storage.read(1 << 16)


def wait_for(done: Callable[[], bool], launcher: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE
    while not done():
        assert launcher.poll() is None, "the ranks ended"
        assert time.monotonic() < until, "the ranks did not start"
        time.sleep(TICK)


def command_lines(above: psutil.Process) -> list[list[str]]:
    """Of every process below it; one that has ended, waited for or not, has none."""
    lines = []
    for process in above.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is one, too
            lines.append(process.cmdline())
    return lines


@dataclass
class Watch:
    """An agent over the ranks' rings, and all that it told."""

    agent: Agent
    folder: Path
    told: list[Incident]
    launcher: subprocess.Popen[bytes]
    notices: list[str]

    def until(self, done: Callable[[], bool]) -> None:
        """Let the agent look at the clock until something is so."""
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, f"waited in vain; told: {self.told}, said: {self.notices}"
            self.agent.tick()
            time.sleep(TICK)

    @property
    def stalls(self) -> list[Incident]:
        return [one for one in self.told if one.kind == "stall"]

    def stall(self) -> Incident:
        """The stall, once the ranks have told where they are."""
        self.until(lambda: any(one.stacks is not None for one in self.stalls))
        return next(one for one in self.stalls if one.stacks is not None)
