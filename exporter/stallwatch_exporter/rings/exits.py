"""Read exit codes of processes that are not children of this process, such as ranks of a launcher.

A descriptor of the process wakes the agent when the process ends (pidfd_open(2), Linux 5.3). Until the
parent reads the status, the process is a zombie. The zombie's ``stat`` file in ``/proc`` shows the status,
but only to the same user (proc_pid_stat(5), ``exit_code``). In Linux 6.15 and later, the status can also be
read from the descriptor afterward (``PIDFD_GET_INFO``, ``PIDFD_INFO_EXIT``:
``include/uapi/linux/pidfd.h``).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import threading
import weakref
from collections.abc import Hashable
from pathlib import Path

from stallwatch_exporter import steady
from stallwatch_exporter.rings.presence import is_there
from stallwatch_rules.files import is_own

MOST_WATCHED = 256  #: Maximum number of watched processes. Each process needs a descriptor.
_LOOK_SECONDS = 5.0  # maximum number of seconds until the thread detects that this object was closed
_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, 64 bytes)
_INFO = struct.Struct("=QQ11Ii")  # fields: mask, control group, other numbers, and exit code
_INFO_EXIT = 1 << 3
_EXIT_CODE = 49  # index in the fields after the process name, counted from 0


class Exits:
    """Exit codes, if the kernel provides them, of processes that were passed to `watch` while running."""

    def __init__(self) -> None:
        self.codes: dict[Hashable, int] = {}  #: exit codes (``-n`` for signal n) by the key given to `watch`
        self.ended_at: dict[Hashable, float] = {}  #: steady time at which each watched process ended
        self._seen: set[Hashable] = set()
        self._watched: dict[int, tuple[int, Hashable]] = {}  # process and key by descriptor
        self._epoll: select.epoll | None = None
        self._lock = threading.Lock()

    def watch(self, key: Hashable, pid: int, started: float) -> None:
        """Watch the process `pid`, which ran at the steady time `started`. A repeated `key` has no effect."""
        if key in self._seen or not hasattr(os, "pidfd_open"):
            return
        self._seen.add(key)
        if len(self._watched) >= MOST_WATCHED:
            return
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return
        if not is_there(pid, steady.wall(started)):  # otherwise, a different process has this ID now
            os.close(fd)
            return
        try:
            with self._lock:
                self._waiting().register(fd, select.EPOLLIN | select.EPOLLONESHOT)
                self._watched[fd] = pid, key
        except (OSError, RuntimeError):  # if no descriptor or thread is free, the exit code stays unknown
            os.close(fd)

    def close(self) -> None:
        """Stop watching and close all descriptors."""
        with self._lock:
            epoll, self._epoll = self._epoll, None
            for fd in self._watched:
                os.close(fd)
            self._watched.clear()
        if epoll is not None:
            epoll.close()

    __del__ = close  # the thread holds no strong reference to this object

    def _waiting(self) -> select.epoll:
        """Return the epoll object. The first call also starts the thread that waits on it.

        The caller must hold the lock.
        """
        if self._epoll is None:
            epoll = select.epoll()
            try:
                threading.Thread(target=_wait, args=(epoll, weakref.ref(self)), daemon=True).start()
            except RuntimeError:
                epoll.close()
                raise
            self._epoll = epoll
        return self._epoll

    def _take(self, epoll: select.epoll, ended: list[tuple[int, int]]) -> bool:
        """Record which of the watched processes have ended. Return False if the calling thread must stop."""
        with self._lock:
            if self._epoll is not epoll:
                return False
            for fd, _ in ended:
                pid, key = self._watched.pop(fd)
                self.ended_at[key] = steady.now()
                code = exit_code(pid, fd)
                if code is not None:
                    self.codes[key] = code
                os.close(fd)
        return True


def _wait(epoll: select.epoll, exits: weakref.ref[Exits]) -> None:
    """Record the ends of processes until `exits` is closed or no longer referenced."""
    while True:
        try:
            ended = epoll.poll(_LOOK_SECONDS)
        except (OSError, ValueError):  # the epoll object was closed
            return
        owner = exits()
        if owner is None or not owner._take(epoll, ended):
            return
        del owner


def exit_code(pid: int, fd: int) -> int | None:
    """Return the exit code of an ended process, ``-n`` for signal n, or ``None`` if it is unknown."""
    status = _of_zombie(pid)
    if status is None:
        status = _of_descriptor(fd)
    return os.waitstatus_to_exitcode(status) if status is not None else None


def _of_zombie(pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        folder = Path(f"/proc/{pid}")
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        if fields[0] in "ZX" and is_own(folder.stat()):  # the value is 0 for processes of other users
            return int(fields[_EXIT_CODE])
    return None


def _of_descriptor(fd: int) -> int | None:
    with contextlib.suppress(OSError):  # the kernel does not support or permit the request
        info = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
        fcntl.ioctl(fd, _GET_INFO, info)
        mask, *_, code = _INFO.unpack(info)
        return int(code) if mask & _INFO_EXIT else None
    return None
