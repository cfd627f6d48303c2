"""A checkpoint, whatever wrote it: every file in a folder that is known to hold weights or states."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from stallwatch_exporter.checkpoints.faults import Fault
from stallwatch_exporter.checkpoints.indexes import check_index
from stallwatch_exporter.checkpoints.safetensors import check_safetensors
from stallwatch_exporter.checkpoints.torchzip import check_torch, is_torch
from stallwatch_exporter.checkpoints.zerofolder import PARTITIONED, check_latest, check_zero_folder

_TORCH = (".bin", ".pt", ".pth")
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin.index.json", *_TORCH)


MOST_NAMES = 200_000  #: of files and folders below a path: many times a checkpoint's, and seconds to list
_TELL_EVERY = 20_000  #: names


class Below(NamedTuple):
    """What lies below a path: each folder with its files' names; all of it, or the first names only."""

    folders: list[tuple[Path, list[str]]]
    whole: bool = True


class LookedAt(NamedTuple):
    """The files with a checkpoint's names: how many are looked at, and the names of those that are none."""

    files: int
    foreign: list[str]


def listed(path: Path, most: int = MOST_NAMES, tell: Callable[[int], object] | None = None) -> Below:
    """The folders below a path with their files, itself the first; of a file, that file.

    Links to folders are not followed. It ends after `most` names: a path such as /home is no checkpoint.
    `tell` is called with the number of names now and then.

    Raises:
        FileNotFoundError: there is no such path.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    if path.is_file():
        return Below([(path.parent, [path.name])])
    found: list[tuple[Path, list[str]]] = []
    count = told = 0
    for folder, folders, names in os.walk(path):
        folders.sort()
        count += len(folders) + len(names)
        if count > most:
            return Below(found, whole=False)
        if tell is not None and count - told >= _TELL_EVERY:
            told = count
            tell(count)
        found.append((Path(folder), sorted(names)))
    return Below(found)


def check_checkpoint(path: Path, below: Below | None = None) -> list[Fault]:
    """The faults of a checkpoint: a folder, with all that lies in it, or one file.

    Headers, tables of contents and sizes are read, never the tensors, and nothing is unpickled. A file that
    cannot be read is a fault itself. `below` is what was listed of the path, where that was done.

    Raises:
        FileNotFoundError: there is no such path.
    """
    faults: list[Fault] = []
    for folder, names in (below or listed(path)).folders:
        for name in names:
            faults += _file(folder / name)
        if not path.is_file():
            faults += check_zero_folder(folder, names)
    return faults


def looked_at(path: Path, below: Below | None = None) -> LookedAt:
    """Which files of a checkpoint there are to look at."""
    named = [folder / name for folder, names in (below or listed(path)).folders for name in names]
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
