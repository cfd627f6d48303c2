"""The queue between passing bytes through and mining them: bounded in bytes, and never in the way."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

MAX_BYTES = 64 * 1024 * 1024


class Chunk(NamedTuple):
    """Bytes as they were read from one stream."""

    stream: str
    data: bytes
    time: float
    gap: bool  #: whether bytes before these were dropped


class ByteQueue:
    """What does not fit is dropped and counted: the command must not wait for whoever reads here."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.dropped = 0  #: lines (or parts of one) that did not fit
        self._max = max_bytes
        self._chunks: deque[Chunk] = deque()
        self._bytes = 0
        self._enough = 0  # bytes that somebody waits for
        self._gaps: set[str] = set()
        self._closed = False
        self._change = threading.Condition()

    def put(self, stream: str, data: bytes, time: float) -> None:
        """Hand over bytes; returns at once."""
        with self._change:
            if self._bytes + len(data) > self._max:
                self.dropped += data.count(b"\n") or 1
                self._gaps.add(stream)
                return
            self._chunks.append(Chunk(stream, data, time, stream in self._gaps))
            self._gaps.discard(stream)
            self._bytes += len(data)
            if self._bytes >= self._enough:
                self._change.notify()

    def take(self, timeout: float, most: int = MAX_BYTES) -> list[Chunk]:
        """What came within `timeout` seconds, sooner if `most` bytes are there; no chunk behind these."""
        with self._change:
            self._enough = most
            if self._bytes < most and not self._closed:
                self._change.wait(timeout)
            chunks: list[Chunk] = []
            size = 0
            while self._chunks and size < most:
                chunks.append(self._chunks.popleft())
                size += len(chunks[-1].data)
            self._bytes -= size
            return chunks

    def close(self) -> None:
        """Nothing more will come: wakes who waits."""
        with self._change:
            self._closed = True
            self._change.notify()

    @property
    def waiting(self) -> bool:
        """Whether something is there to be taken."""
        with self._change:
            return bool(self._chunks)

    @property
    def ended(self) -> bool:
        """Whether it is closed and all was taken."""
        with self._change:
            return self._closed and not self._chunks
