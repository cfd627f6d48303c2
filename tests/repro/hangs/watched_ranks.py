"""Ranks that hang on request, and an agent that watches them, for the tests beside this file."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.rings.probing import Probing
from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.watching.agent import Agent

HERE = Path(__file__).resolve().parent
RANKS = 3
FLOOR = 0.5  # seconds: steps take 40 ms, and a save may take twenty times as long
STEPS = 20  # steps of a watched run after which its pace is known
TICK = 0.2
PATIENCE = 150.0
# largest delay in seconds after the threshold on a busy machine; ``make bench-stall`` measures the real one
LATE = 30.0


@dataclass
class Ranks:
    """The ranks' processes, and the folder of the files that make them hang."""

    folder: Path
    rings: Path
    launcher: subprocess.Popen[bytes]
    pids: list[int] = field(default_factory=list)

    def hold(self, hang: str, rank: int = 1) -> None:
        """Make a rank hang, and wait until it hangs and the others wait for it.

        On a busy machine, a step may take longer than the stall threshold, so an earlier report may be about
        another rank.
        """
        (self.folder / f"{hang}-{rank}").touch()
        wait_for(lambda: self._at("hangs", rank) > 0, self.launcher)
        self._others_join(rank, self._at("hangs", rank))

    def stop(self, rank: int = 1) -> None:
        """Stop a rank at its current place, and wait until the others wait for it."""
        os.kill(self.pids[rank], signal.SIGSTOP)
        self._others_join(rank, self._at("joins", rank))

    def _others_join(self, rank: int, step: int) -> None:
        others = set(range(RANKS)) - {rank}
        wait_for(lambda: all(self._at("joins", other) >= step for other in others), self.launcher)

    def let_go(self, hang: str, rank: int = 1) -> None:
        """Let a hanging rank continue."""
        (self.folder / f"hangs-{rank}").unlink()
        (self.folder / f"{hang}-{rank}").unlink()

    def _at(self, what: str, rank: int) -> int:
        """Return the step at which this rank does something; 0 if it is unknown."""
        try:
            return int((self.folder / f"{what}-{rank}").read_text() or 0)
        except FileNotFoundError:
            return 0

    def caught_up(self, probing: Probing) -> int:
        """Wait for a new step of each rank after `probing` was read; return the last step so far.

        From then on, delays by an earlier test do not affect the pace of the run.
        """
        begun = {record.rank: record.values["step"] for record in _steps(probing)}
        last: dict[int, float] = {}

        def all_went_on() -> bool:
            last.update({record.rank: record.values["step"] for record in _steps(probing)})
            return len(last) == RANKS and all(step > begun.get(rank, 0) + 1 for rank, step in last.items())

        wait_for(all_went_on, self.launcher)
        return int(max(last.values()))

    def drain(self, pipe: str) -> None:
        """Read a rank's output from the pipe until it writes no more."""
        with (self.folder / pipe).open("r+b", buffering=0) as storage:
            while select.select([storage], [], [], 1.0)[0]:
                storage.read(1 << 16)


def _steps(probing: Probing) -> list[Record]:
    return [record for record in probing.read() if "step" in record.values]


def wait_for(done: Callable[[], bool], launcher: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE
    while not done():
        assert launcher.poll() is None, "the ranks ended"
        assert time.monotonic() < until, "the ranks did not start"
        time.sleep(TICK)


def command_lines(above: psutil.Process) -> list[list[str]]:
    """Return the command lines of all descendants; an ended process has none."""
    lines = []
    for process in above.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # zombies raise this error, too
            lines.append(process.cmdline())
    return lines


@dataclass
class Watch:
    """An agent on the ranks' rings, and its incidents."""

    agent: Agent
    folder: Path
    sent: list[Incident]
    launcher: subprocess.Popen[bytes]
    notices: list[str]

    def until(self, done: Callable[[], object]) -> None:
        """Let the agent check the clock until the condition holds."""
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, f"no such state; sent: {self.sent}, notices: {self.notices}"
            self.agent.tick()
            time.sleep(TICK)

    @property
    def stalls(self) -> list[Incident]:
        return [item for item in self.sent if item.kind == "stall"]

    def stall(self) -> Incident:
        """Return the next stall, after the ranks have reported their stacks."""
        self.sent.clear()  # a busy machine may have delayed the run before

        def explained() -> list[Incident]:
            return [stall for stall in self.stalls if stall.status == "open" and stall.stacks is not None]

        self.until(explained)
        return explained()[0]
