"""Check the ownership of files, and replace files atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # without this flag, opening a pipe blocks until a writer opens it
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | _NO_WAIT


def account() -> int:
    """Return the effective user ID of this process, or 0 on Windows, where all files belong to user 0."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def is_own(status: os.stat_result, *, or_root: bool = False) -> bool:
    """Return whether a file belongs to this account. If `or_root` is true, root's files also count."""
    return status.st_uid == account() or (or_root and status.st_uid == 0)


def is_private(status: os.stat_result, others: int = OTHERS_WRITE) -> bool:
    """Return whether a file belongs to this account and denies other users the permissions `others`."""
    return is_own(status) and not status.st_mode & others


def foreign_part(path: Path) -> Path | None:
    """Return the first folder or link in a path that belongs neither to this account nor to root.

    The owner of such a part can change the target of the path.
    """
    for real in (False, True):  # check the links, then their targets
        with contextlib.suppress(OSError):  # a missing part has no owner
            full = Path(os.path.realpath(path)) if real else path
            for part in (*reversed(full.parents), full):
                if not is_own(part.lstat(), or_root=True):
                    return part
    return None


@contextlib.contextmanager
def open_regular(path: str | Path) -> Iterator[BinaryIO]:
    """Open a regular file in a folder to which other users can write. A named pipe cannot block this call.

    Raise `OSError` for anything that is not a regular file.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAIT)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        yield file


def open_to_append(path: Path) -> BinaryIO:
    """Open a file for appending. Raise `OSError` for a link and for a pipe that has no reader."""
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags | _NO_LINK, 0o666))


@contextlib.contextmanager
def open_private(
    path: str | Path, others: int = OTHERS_WRITE, *, folder: int | None = None
) -> Iterator[BinaryIO]:
    """Open a regular file that passes `is_private`. If a folder is given, the path is relative to it.

    Raise `OSError` for any other file and for a link.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_LINK, dir_fd=folder)) as file:
        status = os.fstat(file.fileno())
        if not (stat.S_ISREG(status.st_mode) and is_private(status, others)):
            raise PermissionError(errno.EPERM, "the file is not private to this account", str(path))
        yield file


@contextlib.contextmanager
def replacing(path: Path, mode: int | None = 0o600) -> Iterator[BinaryIO]:
    """Open a temporary file for writing. The file replaces `path` when the block ends without an error.

    If `mode` is ``None``, the umask applies.
    """
    # Other users might be able to write to the folder. Therefore, the name must be hard to guess, and an
    # existing file or link must not be opened.
    beside = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")
    try:
        with open(beside, "xb", opener=lambda name, flags: os.open(name, flags, mode or 0o666)) as out:
            yield out
        if mode is not None:
            beside.chmod(mode)  # the umask must not change the mode
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def replace(path: Path, content: bytes, mode: int | None = 0o600) -> None:
    """Write a file atomically, so that readers see either old or new content. Raise `OSError` on failure."""
    with replacing(path, mode) as out:
        out.write(content)
