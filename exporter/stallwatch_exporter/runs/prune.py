"""Remove old runs, first by age and then by size, except runs that are marked to be kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from stallwatch_exporter.runs.runfolder import agent_alive, read_info, runs_home

KEEP = "KEEP"  #: Name of a file. A run is never removed if its folder contains this file.
_DAY = 86400.0
_TRASH = ".removed-"


class _Old(msgspec.Struct, frozen=True):
    path: Path
    ended_at: float
    bytes: int
    kept: bool  # whether the run is marked to be kept or is still running


def prune(
    home: Path, keep_days: float, keep_gb: float, now: float, notice: Callable[[str], None]
) -> list[str]:
    """Remove the runs that ended more than `keep_days` days ago. Return the names of the removed runs.

    If the remaining runs need more than `keep_gb` gigabytes, also remove the runs that ended first, until the
    remaining runs fit.
    """
    runs = sorted(_runs(home, now), key=lambda run: run.ended_at)
    total = sum(run.bytes for run in runs)
    removed = []
    for run in runs:
        too_old = now - run.ended_at > keep_days * _DAY
        if run.kept or not (too_old or total > keep_gb * 1e9):
            continue
        try:
            # Hide the run first because the removal takes a while and can be interrupted.
            run.path.rename(run.path.with_name(_TRASH + run.path.name))
        except OSError:
            continue
        total -= run.bytes
        removed.append(run.path.name)
    for trash in runs_home(home).glob(_TRASH + "*"):
        shutil.rmtree(trash, ignore_errors=True)
    if removed:
        names = ", ".join(removed[:3]) + (", …" if len(removed) > 3 else "")
        notice(
            f"removed {len(removed)} old run{'s' if len(removed) > 1 else ''} ({names}); "
            f"to keep a run permanently, run touch '{runs_home(home)}/<run>/{KEEP}'"
        )
    return removed


def _runs(home: Path, now: float) -> Iterator[_Old]:
    try:
        folders = list(runs_home(home).iterdir())
    except OSError:
        return
    for path in folders:
        if path.name.startswith("."):
            continue
        # Do not remove a folder without a record, or the target of a link.
        info = None if path.is_symlink() else read_info(path)
        if info is not None:
            ended = info.ended_at or info.updated_at
            yield _Old(path, ended, _size(path), (path / KEEP).exists() or agent_alive(info, now))


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except OSError:
            continue  # the file was removed after it was listed
    return total
