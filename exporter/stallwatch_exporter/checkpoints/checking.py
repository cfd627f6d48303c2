"""A checkpoint, whatever wrote it: every file in a folder that is known to hold weights or states."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stallwatch_exporter.checkpoints.faults import Fault
from stallwatch_exporter.checkpoints.indexes import check_index
from stallwatch_exporter.checkpoints.safetensors import check_safetensors
from stallwatch_exporter.checkpoints.torchzip import check_torch, is_torch
from stallwatch_exporter.checkpoints.zerofolder import PARTITIONED, check_latest, check_zero_folder

_TORCH = (".bin", ".pt", ".pth")
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin.index.json", *_TORCH)


class LookedAt(NamedTuple):
    """The files with a checkpoint's names: how many are looked at, and the names of those that are none."""

    files: int
    foreign: list[str]


def check_checkpoint(path: Path) -> list[Fault]:
    """The faults of a checkpoint: a folder, with all that lies in it, or one file.

    Headers, tables of contents and sizes are read, never the tensors, and nothing is unpickled; links to
    folders are not followed. A file that cannot be read is a fault itself.

    Raises:
        FileNotFoundError: there is no such path.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    if path.is_file():
        return list(_file(path))
    faults: list[Fault] = []
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            faults += _file(Path(folder) / name)
        faults += check_zero_folder(Path(folder), names)
    return faults


def looked_at(path: Path) -> LookedAt:
    """Which files of a checkpoint there are to look at."""
    named = (
        [path]
        if path.is_file()
        else [Path(folder) / name for folder, _, names in os.walk(path) for name in sorted(names)]
    )
    files = [file for file in named if _known(file.name)]
    foreign = [file.name for file in files if _is_foreign(file)]
    return LookedAt(len(files) - len(foreign), foreign)


def _is_foreign(path: Path) -> bool:
    """Whether nothing but its name's end is that of a checkpoint, so that nothing can be said of it."""
    try:
        return path.name.endswith(_TORCH) and path.stat().st_size > 0 and not is_torch(path)
    except OSError:
        return False  # which is told as a fault


def _known(name: str) -> bool:
    return name.endswith(_WEIGHTS) or name == "latest"


def _file(path: Path) -> Iterator[Fault]:
    try:
        yield from _checked(path)
    except OSError as error:
        reason = error.strerror or str(error)
        yield Fault(
            path, "unreadable", f"cannot be read: {reason}", f"无法读取：{reason}", rule="permission-denied"
        )


def _checked(path: Path) -> Iterator[Fault]:
    name = path.name
    if not _known(name):
        return
    if not path.stat().st_size:
        yield Fault(path, "empty-file", "the file is empty", "文件是空的")
    elif name == "latest":
        yield from check_latest(path)
    elif name.endswith(".index.json"):
        yield from check_index(path)
    elif name.endswith(".safetensors"):
        yield from check_safetensors(path)
    else:
        yield from check_torch(path, partitioned=PARTITIONED.fullmatch(name) is not None)
