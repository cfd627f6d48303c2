"""A folder for what is made anew when it is not there: written whole or not at all, read only from its owner.

What is taken from it is trusted: a compiled database is native bytecode. So the folder is made for the user
alone, and a file counts only if it and its folder belong to the user who runs this and nobody else may write
them. Nothing here fails: what cannot be read or written is as good as absent.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from stallwatch_rules import __version__

T = TypeVar("T")

_FOREIGN = stat.S_IWGRP | stat.S_IWOTH
#: What a file's stamp begins with: another version of the package may make something else of the same.
MADE_BY = f"stallwatch {__version__}"


def read(path: Path) -> bytes | None:
    """What the file holds, if nobody but this user can have written it."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, folder)
        if not _own(folder):
            return None
        # No link, and no waiting for a pipe.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = stack.enter_context(os.fdopen(os.open(path.name, flags, dir_fd=folder), "rb"))
        if _own(file.fileno()) and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file.read()
    return None


def write(path: Path, content: bytes) -> None:
    """Let the file hold this, for the user alone; readers see the old content or the new, never a part."""
    folder = path.parent
    with contextlib.suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        replace(path, content)


def replace(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Let the file hold this, all at once; raise ``OSError`` where it cannot."""
    # A name that nobody can foresee: in a folder that others can write, a link may lie in wait for it.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def kept(
    folder: Path | None,
    name: str,
    parts: object,
    most: int,
    *,
    load: Callable[[bytes], T | None],
    make: Callable[[], T],
    dump: Callable[[T], bytes | None],
) -> T:
    """Load what an earlier start made of these parts, or make and keep it; only make it without a folder.

    ``name`` has a ``*`` for a digest of the parts and of the code; the newest ``most`` of its files are kept.
    """
    if folder is None:
        return make()
    path = folder / name.replace("*", _digest(parts))
    content = read(path)
    found = load(content) if content is not None else None
    if found is None:
        found = make()
        content = dump(found)
        if content is not None:
            write(path, content)
            prune(folder, name, most)
    return found


def _digest(parts: object) -> str:
    return hashlib.sha256(msgspec.msgpack.encode((MADE_BY, _makers(), parts))).hexdigest()[:32]


@functools.cache
def _makers() -> bytes:
    """Return a digest of the code by which expressions are made and compiled."""
    here, digest = Path(__file__).parent, hashlib.sha256()
    with contextlib.suppress(OSError):
        for path in (here.parent / "pages" / "patterns.py", *filter(Path.is_file, sorted(here.iterdir()))):
            digest.update(path.read_bytes())
    return digest.digest()


def prune(folder: Path, pattern: str, kept: int) -> None:
    """Leave the newest files of this name."""
    with contextlib.suppress(OSError):
        files = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)
        for path in files[:-kept]:
            path.unlink(missing_ok=True)


def _own(handle: int) -> bool:
    status = os.fstat(handle)
    return status.st_uid == os.geteuid() and not status.st_mode & _FOREIGN
