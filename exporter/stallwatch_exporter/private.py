"""File modes: files that a Stallwatch process makes are for those who may enter the state folder.

A umask sets the mode at once, for its own files and for those that libraries make (DuckDB's ``.wal``,
SQLite's journals). Programs started for the user, such as the training, still get the user's umask.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import sys
from pathlib import Path

from stallwatch_exporter.settings import make_home

_OTHERS = 0o077
_usual = -1  # nothing was changed


def usual_umask() -> int:
    """Return the user's umask, for ``subprocess.Popen``; -1 if it was not changed."""
    return _usual


def make_open(folder: Path) -> None:
    """Make a folder that is not ours alone, and its missing parents, with the user's own umask.

    Raises `OSError` if it cannot be made.
    """
    missing = list(itertools.takewhile(lambda path: not path.exists(), (folder, *folder.parents)))
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        if _usual >= 0:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)  # no link put in its place
            try:
                inherited = os.fstat(handle).st_mode & stat.S_ISGID
                os.fchmod(handle, inherited | 0o777 & ~_usual)
            finally:
                os.close(handle)
    folder.mkdir(exist_ok=True)  # raises if a file is in its place


def keep_private(home: Path) -> None:
    """Close new files, and those in `home`, to accounts that may not read or write in that folder.

    If the user opened the folder to a group or to all, it stays open. Never raises.
    """
    global _usual  # the umask belongs to the process, too
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):
        make_home(home)
    with contextlib.suppress(OSError):
        closed = _OTHERS & ~_mode(home)
        before = os.umask(closed)
        os.umask(before | closed)  # never more permissions than the user's umask allows
        _usual = before if _usual < 0 else _usual
        with os.scandir(home) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # of another account
                    _close(entry, closed)


def _mode(home: Path) -> int:
    with contextlib.suppress(OSError):
        mode = home.stat().st_mode
        if stat.S_ISDIR(mode):
            return mode
    return 0  # its content would be kept elsewhere, for the user alone


def _close(entry: os.DirEntry[str], closed: int) -> None:
    """Remove these permissions from an entry that an earlier version made; that closes all below it."""
    mode = entry.stat(follow_symlinks=False).st_mode
    if mode & closed and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        Path(entry.path).chmod(stat.S_IMODE(mode) & ~closed)
