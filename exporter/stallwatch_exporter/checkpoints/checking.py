"""A checkpoint, whatever wrote it: every file in a folder that is known to hold weights or states."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stallwatch_exporter.checkpoints.faults import Fault
from stallwatch_exporter.checkpoints.indexes import check_index
from stallwatch_exporter.checkpoints.safetensors import check_safetensors
from stallwatch_exporter.checkpoints.torchzip import check_torch
from stallwatch_exporter.checkpoints.zerofolder import PARTITIONED, check_latest, check_zero_folder

_TORCH = (".bin", ".pt", ".pth")
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin.index.json", *_TORCH)


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


def looked_at(path: Path) -> int:
    """How many files of a checkpoint there are to look at."""
    if path.is_file():
        return int(_known(path.name))
    return sum(_known(name) for _, _, names in os.walk(path) for name in names)


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
