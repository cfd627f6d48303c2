"""Follow one growing file, even if it is rotated, truncated, or removed, or if its handle becomes stale.

Each call to ``poll`` checks the file once. ``follow.Waker`` decides when to check, so that tests do not
have to wait. Bytes are passed on unchanged. The line reader holds back an unfinished last line.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

_PORTION = 256 * 1024
MOST_PER_POLL = 4 * 1024 * 1024  #: Maximum number of bytes that one poll reads. The next poll reads the rest.
_MARK = 64


class FileChunk(NamedTuple):
    """Bytes from a file. If `fresh` is true, the file is new, so the bytes do not continue earlier bytes."""

    data: bytes
    fresh: bool


class Position(msgspec.Struct, frozen=True):
    """Position in a file, and data to recognize the file after a restart."""

    device: int
    inode: int
    offset: int  #: offset after the last complete line
    mark: bytes  #: bytes immediately before the offset


class FileTailer:
    """Read the bytes that are appended to `path`, from the `position` at which an earlier tailer stopped.

    If the file is replaced, the old file is read to its end. The new file is read after it has content. A
    truncation is detected even if the file has grown again, because the bytes before the position are
    compared. If a truncation left a hole, the hole is skipped. If the handle of a file on a network file
    system is stale, the file is reopened at the next poll.
    """

    def __init__(self, path: Path, position: Position | None = None) -> None:
        self.path = path
        self.more = False  #: True if the last poll left content unread
        self.problem: OSError | None = None  #: error of the last call, except for a missing file
        self._fd: int | None = None
        self._identity = (0, 0)  # device and inode of the open file
        self._offset = 0
        self._line_end = 0
        self._mark = b""
        self._fresh = False
        self._saved = position

    def poll(self) -> Iterator[FileChunk]:
        """Yield the bytes appended since the last call, in chunks."""
        self.more = False
        fd = self._opened()
        if fd is None:
            return
        try:
            # Look for a new file before reading. After the new file has content, the old file is complete.
            successor = self._successor()
            yield from self._grown(fd)
            if successor and not self.more:
                self.close()
                fd = self._opened()
                if fd is not None:
                    self._fresh = True
                    yield from self._grown(fd)
        except OSError as error:
            self._fail(error)

    def skip_to_last(self, size: int) -> int:
        """Skip an unread file except for its last `size` bytes. Return the number of skipped bytes."""
        if (fd := self._opened()) is None:
            return 0
        try:
            skipped = max(0, os.fstat(fd).st_size - size - self._offset)
            if skipped:
                self._move_to(fd, self._offset + skipped)
        except OSError as error:
            self._fail(error)
            return 0
        return skipped

    def before(self, size: int) -> Iterator[bytes]:
        """Yield the last `size` bytes that an earlier tailer has read."""
        fd = self._opened()
        place, end = max(0, self._offset - size), self._offset
        while fd is not None and place < end:
            try:
                data = os.pread(fd, min(_PORTION, end - place), place)
            except OSError as error:
                self._fail(error)
                return
            if not data:
                return
            place += len(data)
            yield data

    @property
    def position(self) -> Position | None:
        """Position at which to continue after a restart, which is after the last complete line."""
        if self._fd is None:
            return self._saved
        try:
            mark = _read_at(self._fd, max(0, self._line_end - _MARK), min(_MARK, self._line_end))
        except OSError:  # the handle is stale, so keep the known identity and offset
            mark = b""
        return Position(*self._identity, self._line_end, mark)

    @property
    def modified(self) -> float | None:
        """Time of the last write to the file."""
        try:
            return os.fstat(self._fd).st_mtime if self._fd is not None else self.path.stat().st_mtime
        except OSError:
            return None

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            self._saved = self.position
            with contextlib.suppress(OSError):  # closing a stale handle can fail
                os.close(self._fd)
            self._fd = None

    def _opened(self) -> int | None:
        """If the file is closed, open it. Return its descriptor, or ``None`` if it cannot be opened."""
        if self._fd is not None:
            return self._fd
        try:
            # Without O_NONBLOCK, opening a named pipe could block. Pipes are rejected after they are opened.
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            self.problem = None
            return None
        except OSError as error:  # no free descriptor, or no permission
            self.problem = error
            return None
        saved = self._saved
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                os.close(fd)
                return None
            known = (
                saved is not None
                and (saved.device, saved.inode) == (about.st_dev, about.st_ino)
                and saved.offset <= about.st_size
                and _read_at(fd, saved.offset - len(saved.mark), len(saved.mark)) == saved.mark
            )
            self._move_to(fd, saved.offset if known and saved is not None else _first_data(fd))
        except OSError as error:
            self.problem = error
            os.close(fd)
            return None
        self._fd = fd
        self._identity = about.st_dev, about.st_ino
        self._saved = self.problem = None
        self._fresh = not known and saved is not None
        return fd

    def _fail(self, error: OSError) -> None:
        """Close a file that cannot be read, so that the path is reopened later."""
        self.problem = error
        self.close()

    def _successor(self) -> bool:
        """Return whether the path refers to a different file that has content."""
        try:
            now = self.path.stat()
        except OSError:
            return False
        return (now.st_dev, now.st_ino) != self._identity and now.st_size > 0

    def _grown(self, fd: int) -> Iterator[FileChunk]:
        size, mark = os.fstat(fd).st_size, self._mark
        same = size == self._offset or _read_at(fd, self._offset - len(mark), len(mark)) == mark
        if size < self._offset or not same:
            self._move_to(fd, _first_data(fd))
            self._fresh = True
        budget = MOST_PER_POLL
        while budget > 0:
            data = _read_at(fd, self._offset, min(_PORTION, budget))
            if not data:
                return
            budget -= len(data)
            end = max(data.rfind(b"\n"), data.rfind(b"\r"))
            if end >= 0:
                self._line_end = self._offset + end + 1
            self._offset += len(data)
            self._mark = (self._mark + data)[-_MARK:]
            fresh, self._fresh = self._fresh, False
            yield FileChunk(data, fresh)
        self.more = True

    def _move_to(self, fd: int, offset: int) -> None:
        self._offset = self._line_end = offset
        self._mark = _read_at(fd, max(0, offset - _MARK), min(_MARK, offset))


def _read_at(fd: int, offset: int, size: int) -> bytes:
    if size <= 0 or offset < 0:
        return b""
    return os.pread(fd, size, offset)


def _first_data(fd: int) -> int:
    """Return the offset of the first data. A truncation leaves a hole if the writer keeps its offset."""
    try:
        return os.lseek(fd, 0, os.SEEK_DATA)
    except (OSError, AttributeError):
        return 0
