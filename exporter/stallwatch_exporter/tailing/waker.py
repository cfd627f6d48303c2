"""When to look at files again: at once when the kernel says so (inotify), and every now and then anyway.

Network file systems tell inotify nothing of remote writers: the slow poll is no fallback but the other half.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_GATHER_SECONDS = 0.05  # changes within this time are one wake-up: a chatty file must not keep us busy


class Waker:
    """Watches folders. Without inotify (another system, its limits reached) only time wakes."""

    def __init__(self) -> None:
        self._folders: dict[Path, int] = {}
        self._names: dict[int, Path] = {}
        self._inotify: Any = None
        try:
            import inotify_simple
        except ImportError:
            return
        try:
            self._inotify = inotify_simple.INotify()
        except OSError:
            return
        flags = inotify_simple.flags
        self._mask = int(flags.MODIFY | flags.CREATE | flags.MOVED_TO | flags.MOVED_FROM | flags.DELETE)

    def watch(self, folders: Iterable[Path]) -> None:
        """Watch these folders as well."""
        for folder in folders:
            if self._inotify is None or folder in self._folders:
                continue
            try:
                watch = self._inotify.add_watch(folder, self._mask)
            except OSError:
                continue  # gone, or too many watches: the slow poll covers it
            self._folders[folder] = watch
            self._names[watch] = folder

    def wait(self, seconds: float) -> set[Path]:
        """Wait for a change, at most so long; the paths that changed."""
        if self._inotify is None:
            time.sleep(seconds)
            return set()
        events = list(
            self._inotify.read(timeout=max(0, int(seconds * 1000)), read_delay=_GATHER_SECONDS * 1000)
        )
        for event in events:
            if event.mask & 0x8000:  # IN_IGNORED: the folder is gone, and may come back
                self._folders.pop(self._names.pop(event.wd, Path()), None)
        return {self._names[event.wd] / event.name for event in events if event.wd in self._names}

    def close(self) -> None:
        """Stop watching."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
