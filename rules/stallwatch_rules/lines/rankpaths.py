"""Whose output a file holds, by the names that launchers give to their files and folders."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from stallwatch_rules.text.lazy import lazy

_RANK_WORD = lazy(r"([a-z]*)[._-]?rank[._-]?(\d{1,6})(?![\d])", re.IGNORECASE)
_NOT_A_RANK = ("lora", "low", "node", "machine", "adapter", "matrix", "f", "c", "p")
_NUMBERED_FILE = lazy(
    r"worker_(\d{1,5})\.(?:log|out|err|txt)"  # MindSpore's msrun
    r"|workerlog\.(\d{1,5})"  # paddle.distributed.launch
    r"|std_log_process_(\d{1,5})\.txt"  # Azure ML
    r"|.{0,200}?[._-](?:task|proc|procid)[_-]?(\d{1,5})\.(?:log|out|err|txt)",  # Slurm's %t, named
    re.IGNORECASE,
)
_RANK_FOLDER = lazy(
    r"(?:(?:global[_-]?|local[_-]?)?rank[._-]?|device[_-]?)(\d{1,6})",  # torch, Open MPI, MindSpore, Ascend
    re.IGNORECASE,
)


def rank_of_path(path: str) -> int | None:
    """The rank whose output a file holds, where its name or folder tells: ``rank_3.log``,
    ``attempt_0/3/stderr.log`` (torchrun's log folder), ``rank0/stdout.log``, ``workerlog.3``."""
    parts = PurePath(path.replace("!", "/")).parts
    if not parts:
        return None
    for before, digits in _RANK_WORD.findall(parts[-1]):
        if not before.lower().endswith(_NOT_A_RANK):
            return int(digits)
    numbered = _NUMBERED_FILE.fullmatch(parts[-1])
    if numbered:
        return int(next(digits for digits in numbered.groups() if digits))
    for index in range(len(parts) - 2, -1, -1):
        found = _RANK_FOLDER.fullmatch(parts[index])
        if found:
            return int(found[1])
        if parts[index].isdigit() and index and parts[index - 1].startswith("attempt_"):
            return int(parts[index])
    return None


# `%x-%j-%t.out`: job name, job, task. An array's `slurm-17_4.out` is a run of its own, and a date no job.
_SLURM_TASK = lazy(r"(.*?(?<!\d)(?!20\d{6}(?!\d))\d{3,10})[.-](\d{1,4})\.(out|err)")


def ranks_of_tasks(paths: Iterable[str]) -> dict[str, int]:
    """The ranks of files that are numbered by Slurm's tasks.

    One such name is not sure; several of one job, numbered from zero without a gap, are.
    """
    families: dict[tuple[str, str], dict[int, str]] = {}
    for path in paths:
        found = _SLURM_TASK.fullmatch(path)
        if found and rank_of_path(path) is None:
            families.setdefault((found[1], found[3]), {})[int(found[2])] = path
    return {
        path: task
        for tasks in families.values()
        if len(tasks) > 1 and set(tasks) == set(range(len(tasks)))
        for task, path in tasks.items()
    }
