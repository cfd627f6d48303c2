"""Write data safely even to a full disk: reserve a block in advance, and never append partial data."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from pathlib import Path

NAME = "record.json"  #: name of the reserved block in a run's folder
SIZE = 32 * 1024
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Reserve:
    """File of `SIZE` blanks, which reserves disk space for the ending of a run.

    The ending overwrites the blanks, which needs no further disk space and no new file descriptor.

    Raises `OSError` if there is no space for the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # The umask limits the mode, as for the other files of the run.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
        self._close = weakref.finalize(self, os.close, self._fd)
        try:
            self._overwrite(b"")
        except OSError:
            self.remove()
            raise

    def write(self, data: bytes) -> bool:
        """Store `data`, at most `SIZE` bytes, and return whether the data is visible at the path."""
        try:
            self._overwrite(data)
            return os.path.samestat(os.fstat(self._fd), self._path.stat()) and os.access(self._path, os.R_OK)
        except OSError:
            return False

    def blank(self) -> None:
        """If the block has content, empty it because another file in the folder has more recent content."""
        if not self._is_blank:
            self.write(b"")

    def _overwrite(self, data: bytes) -> None:
        self._is_blank = not data
        left, at = memoryview(data.ljust(SIZE)), 0
        while left:
            count = os.pwrite(self._fd, left, at)
            left, at = left[count:], at + count
        os.fsync(self._fd)  # on NFS or with delayed allocation, only this call reports a full disk

    def remove(self) -> None:
        """Remove the file, which is not needed when other files contain the whole record of the run."""
        self._close()
        with suppress(OSError):
            self._path.unlink()


def append_whole(path: Path, data: bytes) -> None:
    """Append `data` completely or not at all, because a partial line would also damage the next line."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _FLAGS, 0o666)
    try:
        size, left = os.fstat(fd).st_size, memoryview(data)
        try:
            while left:
                left = left[os.write(fd, left) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)
