"""Store files in a private cache folder and write them atomically. The files can be re-created.

The content of the files is trusted, because a compiled database contains bytecode that hyperscan runs.
Therefore, only the user who runs this process can access the folder. A file is read only if this user owns
the file and its folder, and if no other user can write to either of them. If a file cannot be read or
written, no error is raised, and the file counts as missing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from stallwatch_rules import __version__
from stallwatch_rules.files import is_private, open_private, replace

T = TypeVar("T")

#: Part of each digest, because a different version of the package can produce a different result.
MADE_BY = f"stallwatch {__version__}"


def read(path: Path) -> bytes | None:
    """Return the content of a file, or ``None`` if it is unreadable or another user might have written it."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, folder)
        if is_private(os.fstat(folder)):
            return stack.enter_context(open_private(path.name, folder=folder)).read()
    return None


def write(path: Path, content: bytes) -> None:
    """Write a file atomically. Only the user of this process can read the file."""
    folder = path.parent
    with contextlib.suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        replace(path, content)


def load_or_make(
    folder: Path | None,
    name: str,
    parts: object,
    most: int,
    *,
    load: Callable[[bytes], T | None],
    make: Callable[[], T],
    dump: Callable[[T], bytes | None],
) -> T:
    """Load the cached result for these inputs (`parts`), or create and store the result.

    If `folder` is ``None``, nothing is loaded or stored. A digest of the inputs and the code replaces the
    ``*`` in `name`. Of the files with such a name, only the newest `most` files are kept.
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
    """Return a digest of the code that creates cached results.

    If the code changes, results of the earlier code are not used.
    """
    here, digest = Path(__file__).parent, hashlib.sha256()
    with contextlib.suppress(OSError):
        for path in sorted((*here.iterdir(), *(here.parent / "pages").iterdir())):
            if path.is_file():
                digest.update(path.read_bytes())
    return digest.digest()


def prune(folder: Path, pattern: str, kept: int) -> None:
    """Delete all files whose names match `pattern`, except for the newest `kept` files."""
    with contextlib.suppress(OSError):
        files = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)
        for path in files[:-kept]:
            path.unlink(missing_ok=True)
