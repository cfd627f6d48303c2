"""Find the ranks on this host: processes that have a ring, and Python processes that have no ring.

Python processes that have no ring must belong to the command.

If there are no such processes, the command might be a single Python program, which then counts as rank 0.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import psutil

from stallwatch_exporter import steady
from stallwatch_exporter.probe.layout import LayoutProblem
from stallwatch_exporter.probe.stacks import SIGNAL
from stallwatch_exporter.rings.presence import inspect_process, is_there
from stallwatch_exporter.rings.reader import RingReader
from stallwatch_exporter.stacks.processes import condition, family
from stallwatch_rules.text.lazy import lazy

_NAME = lazy(r"(\d+)-(\d+)-(\d+)")
# Recognize launchers by name. The variable RANK is not sufficient, because in clusters that number their Pods
# (such as a PyTorchJob in Kubeflow), launchers also have this variable.
_LAUNCHERS = {"torchrun", "torch.distributed.run", "torch.distributed.launch", "deepspeed", "accelerate"}
_LAUNCHERS |= {"deepspeed.launcher.runner", "deepspeed.launcher.launch", "accelerate.commands.launch"}

# Variables that torchrun, deepspeed, mpirun, and srun set for the processes that they start.
_LAUNCHED = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}
_LAUNCHED |= {"PMI_RANK", "PMIX_RANK", "SLURM_PROCID"}


class LocalRank(msgspec.Struct, frozen=True):
    """The process of one rank."""

    rank: int
    pid: int
    started: float  #: Unix seconds of the start of the process, or of the creation of its ring
    ring: Path | None = None  #: Path of the ring, which might not exist. The probe's answers are next to it.
    ended: bool = False


def local_ranks(rings: Path | None, command: int | None) -> list[LocalRank]:
    """Return one process for each rank, sorted by rank.

    Each process either has a ring in the folder `rings` or is a descendant of the process `command`.
    """
    probed = _named(rings, ".ring") if rings is not None else []
    bare = _without_ring(command, {process.pid for process in probed})
    if rings is not None and not probed and not bare:
        return _alone(rings)
    alive = _outermost([process for process in (*probed, *bare) if not process.ended])
    alive.sort(key=lambda each: (each.ring is not None, each.started))
    chosen = {process.rank: process for process in alive}
    if chosen:
        began = min(process.started for process in chosen.values())
        ended = [process for process in probed if process.ended and process.rank not in chosen]
        for process in sorted(ended, key=lambda each: each.started):
            # Ranks of an earlier attempt, which ended before these ranks started, do not count.
            if _last_write(process) > began:
                chosen[process.rank] = process
    return [chosen[rank] for rank in sorted(chosen)]


def sole_program(command: int | None) -> list[LocalRank]:
    """Return the command's Python program as rank 0, or an empty list unless there is exactly one program.

    Launchers do not count. Processes that the program itself started, such as workers of a data loader, do
    not count either.
    """
    found = []
    for process in family(command):
        with contextlib.suppress(psutil.Error, OSError):  # the process ended after it was listed
            if _is_python(process):
                found.append(LocalRank(0, process.pid, process.create_time()))
    alone = _outermost(found)
    return alone if len(alone) == 1 else []


def is_alone(rings: Path | None, command: int | None) -> bool:
    """Return whether the command is a single Python program that does not belong to a larger job.

    The program might belong to a larger job if a launcher set its rank or world size, or if it has child
    processes such as workers or ``ssh``.
    """
    try:
        pythons = [process for process in family(command) if _is_python(process)]
        if len(pythons) != 1 or pythons[0].children() or _LAUNCHED.intersection(pythons[0].environ()):
            return False
    except (psutil.Error, OSError):
        return False
    ranks = [process.rank for process in local_ranks(rings, command)]
    return not _is_launcher(pythons[0].pid) and ranks in ([], [0])


def is_launching(rings: Path | None, command: int | None) -> bool:
    """Return whether the command is a launcher that waits for other nodes and has not started any process."""
    try:
        members = family(command)
        launchers = [process for process in members if _is_launcher(process.pid)]
        # Children other than launchers start ranks on other hosts (``ssh``, ``pdsh``, or ``mpirun``).
        started = [child for each in launchers for child in each.children() if child not in launchers]
        others = [process for process in members if process not in launchers and _is_python(process)]
    except (psutil.Error, OSError):
        return False
    return bool(launchers) and not started and not others and not local_ranks(rings, command)


def _alone(folder: Path) -> list[LocalRank]:
    """Return the only Python program of the command, or an empty list if there are several."""
    running = [process for process in _named(folder, SIGNAL) if not process.ended]
    running.sort(key=lambda process: process.started)
    # A process that called ``exec`` has several files with its process ID, so keep only the newest file.
    alone = _outermost(list({process.pid: process for process in running}.values()))
    return alone if len(alone) == 1 else []


def _named(folder: Path, suffix: str) -> list[LocalRank]:
    """Return the processes that wrote the files with this suffix in the folder of rings."""
    paths, found = list[Path](), list[LocalRank]()
    with contextlib.suppress(OSError):
        paths = sorted(folder.glob(f"*{suffix}"))
    for path in paths:
        if name := _NAME.fullmatch(path.stem):
            rank, pid, started = int(name[1]), int(name[2]), int(name[3]) / 1e9
            ended = not is_there(pid, steady.wall(started))
            found.append(LocalRank(rank, pid, started, path.with_suffix(".ring"), ended))
    return found


def _without_ring(command: int | None, known: set[int]) -> list[LocalRank]:
    """Return the Python descendants of the command that have a rank from a launcher, but no probe."""
    found = []
    for process in family(command)[1:]:
        with contextlib.suppress(psutil.Error, OSError):  # the process ended or belongs to another user
            environ = process.environ() if process.pid not in known and _is_python(process) else {}
            rank = environ.get("RANK") or environ.get("LOCAL_RANK") or ""
            if rank.isdigit() and condition(process.pid) != "ended":
                found.append(LocalRank(int(rank), process.pid, process.create_time()))
    return found


def _is_python(process: psutil.Process) -> bool:
    return "python" in process.name().lower()


def _outermost(ranks: list[LocalRank]) -> list[LocalRank]:
    """Return the ranks, except launchers and workers that inherited a rank number from their parent."""
    ranks = [rank for rank in ranks if not _is_launcher(rank.pid)]
    numbers = {rank.pid: rank.rank for rank in ranks}
    found = []
    for rank in ranks:
        parents = inspect_process(rank.pid, psutil.Process.parents, list[psutil.Process]())
        if not any(numbers.get(parent.pid) == rank.rank for parent in parents):
            found.append(rank)
    return found


def _is_launcher(pid: int) -> bool:
    return inspect_process(pid, lambda process: launches(process.cmdline()), False)


def launches(words: list[str]) -> bool:
    """Return whether this command line belongs to a launcher, such as ``torchrun``."""
    words = words[1:]
    while words and words[0].startswith("-") and words[0] != "-m":
        words = words[1:]
    program = words[1:2] if words[:1] == ["-m"] else [Path(word).name for word in words[:1]]
    return bool(_LAUNCHERS.intersection(program))


def rank_environ(pid: int) -> dict[str, str]:
    """Return the initial environment of a process, or an empty dict if the environment cannot be read."""
    return inspect_process(pid, psutil.Process.environ, {})


def _last_write(rank: LocalRank) -> float:
    """Return the time at which the rank last wrote to its ring."""
    with contextlib.suppress(OSError, LayoutProblem):
        if rank.ring is not None:
            with contextlib.closing(RingReader(rank.ring)) as reader:
                if records := reader.read(1).records:
                    return records[-1].time
    return rank.started
