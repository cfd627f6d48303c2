"""Write text events (warnings, exceptions, and versions) to a JSON Lines file beside the ring.

Most repeated messages are only counted, and the file contains at most `MOST_BYTES` bytes. The last part of
the file is reserved for the exception that ends the rank.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20
MOST_LINE = 16 << 10
KEPT_BYTES = 32 << 10  #: bytes reserved for events of the kind `LAST`, and maximum line length of that kind
LAST = "exception"
_MOST_KEYS = 2000


class EventFile:
    """Writer of the event file, which the first event creates.

    Its methods never raise errors. `dropped` is the number of lost events.
    """

    def __init__(
        self,
        path: Path,
        *,
        most_bytes: int = MOST_BYTES,
        kept_bytes: int = KEPT_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self.dropped = 0  #: number of events lost because space ran out, excluding repeated events
        self._left = most_bytes
        self._kept = kept_bytes
        self._clock = clock
        self._fd: int | None = None
        self._seen: dict[str, int] = {}

    def write(self, kind: str, key: str | None = None, **about: Any) -> bool:
        """Write an event. Of the events with the same `key`, write only the 1st, 10th, 100th, …."""
        try:
            return self._write(kind, key, about)
        except Exception:  # a full disk or invalid text must not affect the training
            self.dropped += 1
            return False

    def _write(self, kind: str, key: str | None, about: dict[str, Any]) -> bool:
        count = 1
        if key is not None:
            if key not in self._seen and len(self._seen) >= _MOST_KEYS:
                self.dropped += 1
                return False
            count = self._seen[key] = self._seen.get(key, 0) + 1
            if str(count).rstrip("0") != "1":  # 1, 10, 100, …
                return False
        import json  # imported late, because most Python processes have no events

        record = {"time": round(self._clock(), 3), "kind": kind, "count": count, **about}
        line = json.dumps(record, ensure_ascii=True, default=str).encode("ascii") + b"\n"
        most = min(KEPT_BYTES, self._left) if kind == LAST else min(MOST_LINE, self._left - self._kept)
        if len(line) > most:
            self.dropped += 1
            return False
        if self._fd is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._fd = os.open(self.path, flags, 0o600)
        if os.write(self._fd, line) != len(line):
            self._left = 0  # only part of the line was written, so later lines would be unreadable
            self.dropped += 1
            return False
        self._left -= len(line)
        return True
