"""Restrict access to Stallwatch's files to the accounts that have access to the state folder.

The umask sets the mode of all new files, including files that libraries create (such as DuckDB's ``.wal`` or
SQLite's journals). Programs that Stallwatch starts for the user, such as the training script, still get the
user's umask.
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
_usual = -1  # the user's umask, or -1 if the umask was not changed


def usual_umask() -> int:
    """Return the user's umask for ``subprocess.Popen``, or -1 if it was not changed."""
    return _usual


def make_open(folder: Path) -> None:
    """Create a folder that other accounts share, and its missing parents, with the user's umask.

    Raises `OSError` if the folder cannot be created.
    """
    missing = list(itertools.takewhile(lambda path: not path.exists(), (folder, *folder.parents)))
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        if _usual >= 0:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)  # fails for a symbolic link
            try:
                inherited = os.fstat(handle).st_mode & stat.S_ISGID
                os.fchmod(handle, inherited | 0o777 & ~_usual)
            finally:
                os.close(handle)
    folder.mkdir(exist_ok=True)  # raises if a file exists at this path


def keep_private(home: Path) -> None:
    """Make new files, and the files in `home`, inaccessible to accounts that have no access to `home`.

    If the user gave a group or all accounts access to the folder, the files stay accessible to them. This
    function never raises an error.
    """
    global _usual  # like the umask, this value belongs to the whole process
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):
        make_home(home)
    with contextlib.suppress(OSError):
        closed = _OTHERS & ~_mode(home)
        before = os.umask(closed)
        os.umask(before | closed)  # permissions are never wider than the user's umask allows
        _usual = before if _usual < 0 else _usual
        # Also restrict files from earlier versions, and subfolders, whose mode protects the files inside.
        for path in home.iterdir():
            with contextlib.suppress(OSError):  # skip files and folders of other accounts
                mode = path.lstat().st_mode
                if mode & closed and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    path.chmod(stat.S_IMODE(mode) & ~closed)


def _mode(home: Path) -> int:
    with contextlib.suppress(OSError):
        mode = home.stat().st_mode
        if stat.S_ISDIR(mode):
            return mode
    return 0  # `home` is not usable, so the state is stored in a private folder instead
