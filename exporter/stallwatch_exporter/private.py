"""Set file modes: files of a Stallwatch process are only for accounts that may enter the state folder.

A umask sets the mode at once, for Stallwatch's own files and for those of libraries (DuckDB's ``.wal``,
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
_usual = -1  # -1: the umask was not changed


def usual_umask() -> int:
    """Return the user's umask, for ``subprocess.Popen``; -1 if it was not changed."""
    return _usual


def make_open(folder: Path) -> None:
    """Create a folder that is shared with other accounts, and its missing parents, with the user's umask.

    Raises `OSError` if it cannot be created.
    """
    missing = list(itertools.takewhile(lambda path: not path.exists(), (folder, *folder.parents)))
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        if _usual >= 0:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)  # refuses a symbolic link
            try:
                inherited = os.fstat(handle).st_mode & stat.S_ISGID
                os.fchmod(handle, inherited | 0o777 & ~_usual)
            finally:
                os.close(handle)
    folder.mkdir(exist_ok=True)  # raises if a file exists at this path


def keep_private(home: Path) -> None:
    """Close new files, and files in `home`, to accounts that cannot read or write in that folder.

    If the user opened the folder to a group or to all, its files stay open. Never raises.
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
                with contextlib.suppress(OSError):  # entries of another account
                    _close(entry, closed)


def _mode(home: Path) -> int:
    with contextlib.suppress(OSError):
        mode = home.stat().st_mode
        if stat.S_ISDIR(mode):
            return mode
    return 0  # the state would be stored elsewhere, for the user only


def _close(entry: os.DirEntry[str], closed: int) -> None:
    """Remove permissions from an entry of an earlier version; for a folder, this closes its content."""
    mode = entry.stat(follow_symlinks=False).st_mode
    if mode & closed and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        Path(entry.path).chmod(stat.S_IMODE(mode) & ~closed)
