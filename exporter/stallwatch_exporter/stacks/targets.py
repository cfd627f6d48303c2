"""Find the ranks that ``stallwatch stacks`` queries in a local run or among the descendants of a process."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil
from msgspec.structs import replace

from stallwatch_exporter.probe.api import FOLDER_VARIABLE
from stallwatch_exporter.rings.presence import inspect_process, process_namespace
from stallwatch_exporter.running import keeper
from stallwatch_exporter.runs.runfolder import AgentInfo, agent_alive, kept_runs, read_info
from stallwatch_exporter.stacks.gathering import gather
from stallwatch_exporter.stacks.local_ranks import LocalRank, local_ranks, rank_environ, sole_program
from stallwatch_exporter.stacks.processes import family
from stallwatch_logs.log_files import LogFile, expand
from stallwatch_logs.rank_files import read_rank_files
from stallwatch_rules.stacks.folding import fold
from stallwatch_rules.stacks.records import RankAnswer, StallStacks

AGAIN_SECONDS = 1.0  #: seconds between the two snapshots

_MOST_NAMES = 8


class NoTargetError(Exception):
    """Raised if no rank can be queried. `key` and `parameters` identify a command-line message."""

    def __init__(self, key: str, **parameters: str) -> None:
        super().__init__(key)
        self.key, self.parameters = key, parameters


class Target(msgspec.Struct, frozen=True):
    """A local run or a process, whose descendants can be ranks."""

    run: str  #: label of the run, or empty if the user gave a process ID
    command: int | None  #: process whose descendants can be ranks, or ``None`` if it has ended
    rings: Path | None  #: folder of the ranks' rings, or ``None`` if the ranks have no probe

    @property
    def name(self) -> str:
        """Name to display."""
        return self.run or f"PID {self.command}"

    def ranks(self) -> list[LocalRank]:
        """Return the running ranks, or the command's only Python program."""
        return local_ranks(self.rings, self.command) or sole_program(self.command)


def find_target(name: str, home: Path) -> Target:
    """Return the run or process with this name, folder, or ID. If `name` is "", use the host's only run."""
    runs = kept_runs(home)
    here = [info for _, info in runs if agent_alive(info) and _is_here(info)]
    if not name:
        if len(here) == 1:
            return _of_run(here[0], home)
        raise NoTargetError("stacks-several" if here else "stacks-none", runs=_names(here))
    named = (info for folder, info in runs if name in (folder.name, info.run))
    info = read_info(Path(name)) or next(named, None)
    if info is not None:
        return _of_run(info, home)
    if name.isdecimal():
        return _of_process(int(name))
    raise NoTargetError("stacks-no-run" if here else "stacks-no-run-here", name=name, runs=_names(here))


def _names(runs: Sequence[AgentInfo]) -> str:
    return ", ".join(info.run for info in runs[:_MOST_NAMES]) + (", …" if len(runs) > _MOST_NAMES else "")


def _is_here(info: AgentInfo) -> bool:
    return (info.host, info.namespace) == (socket.gethostname(), process_namespace())


def _of_run(info: AgentInfo, home: Path) -> Target:
    if info.ended_at is not None:
        raise NoTargetError("stacks-over", run=info.run)
    if info.host != socket.gethostname():
        raise NoTargetError("stacks-elsewhere", run=info.run, host=info.host)
    if not _is_here(info):
        raise NoTargetError("stacks-container", run=info.run, host=info.host)
    if not agent_alive(info):  # the ranks can continue to train without an agent
        return Target(info.run, None, _rings_of(info.pid, home))
    _require_own(info.pid)
    for process in _started_by(info.pid):
        return Target(info.run, process.pid, _rings_in(process))
    return Target(info.run, None, None)  # the agent of ``stallwatch tail``


def _started_by(agent: int) -> list[psutil.Process]:
    """Return the processes that an agent started, except the keeper process, which can outlive the agent."""
    return inspect_process(
        agent,
        lambda process: [child for child in process.children() if keeper.__file__ not in child.cmdline()],
        [],
    )


def _of_process(pid: int) -> Target:
    if not psutil.pid_exists(pid):
        raise NoTargetError("stacks-no-process", pid=str(pid))
    _require_own(pid)
    rings = next((found for process in family(pid) if (found := _rings_in(process)) is not None), None)
    return Target("", pid, rings)


def _require_own(pid: int) -> None:
    """Raise `NoTargetError` if the process belongs to another account and cannot be inspected."""
    try:
        process = psutil.Process(pid)
        if os.geteuid() not in (0, process.uids().effective):
            raise NoTargetError("stacks-not-own", pid=str(pid), user=process.username())
    except (psutil.Error, OSError):  # the process has already ended
        raise NoTargetError("stacks-no-process", pid=str(pid)) from None


def _rings_in(process: psutil.Process) -> Path | None:
    """Return the folder of rings that the environment of a process names, or ``None``."""
    folder = Path(rank_environ(process.pid).get(FOLDER_VARIABLE, ""))
    return folder if folder.is_absolute() and folder.is_dir() else None


def _rings_of(agent: int, home: Path) -> Path | None:
    """Return the newest folder of rings that an agent created. The folder names contain times."""
    return max((home / "rings").glob(f"{agent}-*"), default=None)


class Seen(msgspec.Struct, frozen=True):
    """Stacks of a target's ranks, and the answer from each rank to the query."""

    stacks: StallStacks
    answers: list[RankAnswer]
    advances: bool  #: True if a counter grew between two snapshots, so no rank holds up the run


def look(target: Target) -> Seen:
    """Query all ranks (twice if any rank has counters). Raise `NoTargetError` if no rank can be queried."""
    ranks = target.ranks()
    if not ranks:
        raise NoTargetError("stacks-nobody", name=target.name)
    began = time.monotonic()
    answers = gather(ranks, interrupt=False)
    if all(answer.condition in ("alive", "blocked") and not answer.origin for answer in answers):
        raise NoTargetError("stacks-unread")
    stacks = fold(answers, time=time.time(), seconds=time.monotonic() - began)
    if not any(answer.counters for answer in answers):
        return Seen(stacks, answers, advances=False)
    time.sleep(AGAIN_SECONDS)
    advances = _advanced(answers, gather(ranks, interrupt=False))
    if advances:
        stacks = replace(stacks, odd=[], why="", candidates=[], confidence=0.0)
    return Seen(stacks, answers, advances)


def read_snapshots(paths: Sequence[Path]) -> Seen:
    """Combine output of ``stallwatch stacks --json`` from several hosts with dumps of the flight recorder."""
    files: list[LogFile] = []
    logs, problems = expand(paths, rank_files=files)
    states = read_rank_files(files, problems)
    if problems:
        raise NoTargetError("stacks-unreadable", problem=str(problems[0]))
    if logs or states.stacks is None:
        name = logs[0].name if logs else str(paths[0])
        raise NoTargetError("stacks-no-snapshot", path=name)
    return Seen(states.stacks, [], advances=False)


def _advanced(before: Sequence[RankAnswer], now: Sequence[RankAnswer]) -> bool:
    """Return whether any counter of a rank has grown between two snapshots."""
    earlier = {(answer.rank, answer.pid): answer.counters for answer in before}
    return any(
        value > earlier.get((answer.rank, answer.pid), {}).get(name, value)
        for answer in now
        for name, value in answer.counters.items()
    )
