"""One thread that carries one stream of the command to ours, byte for byte, and hands a copy to the miner."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable

from stallwatch_exporter import steady
from stallwatch_exporter.running.bytequeue import ByteQueue

_PORTION = 65536
_LAST_BYTES = 4 * 1024 * 1024  # more than a pipe can hold


class Pump:
    """Reads `source` until its end, or until `stop` and there is nothing left to read at that moment."""

    def __init__(
        self,
        name: str,
        source: int,
        target: int,
        queue: ByteQueue,
        clock: Callable[[], float] = steady.now,
    ) -> None:
        self._name = name
        self._source = source
        self._target: int | None = target
        self._queue = queue
        self._clock = clock
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"pump {name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread to be had
            os.close(self._wake_write)
            os.close(self._wake_read)
            raise

    def finish(self, grace: float) -> None:
        """Wait for the end of the stream for `grace` seconds, then carry only what is there and end."""
        self._thread.join(grace)
        os.write(self._wake_write, b"x")
        self._thread.join()  # only our own output, blocked as it would be without us, can hold this up
        os.close(self._wake_write)
        os.close(self._wake_read)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        last: int | None = None  # bytes that may still be carried after `finish` gave up waiting
        while last is None or last > 0:
            ready = dict(poll.poll(None if last is None else 0))
            if self._source in ready:
                data = self._read()
                if not data:
                    break
                self._write(data)
                self._queue.put(self._name, data, self._clock())
                last = None if last is None else last - len(data)
            elif last is not None:
                break
            if self._wake_read in ready and last is None:
                last = _LAST_BYTES
        os.close(self._source)

    def _read(self) -> bytes:
        try:
            return os.read(self._source, _PORTION)
        except OSError:
            return b""  # EIO: everyone closed the other side of the pseudo-terminal

    def _write(self, data: bytes) -> None:
        """Write all of it. When nobody reads our output any more the command still must not notice."""
        left = memoryview(data)
        while left and self._target is not None:
            try:
                left = left[os.write(self._target, left) :]
            except BlockingIOError:
                waiting = select.poll()
                waiting.register(self._target, select.POLLOUT)
                waiting.poll()
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EIO, errno.EBADF):
                    self._target = None
                return  # such as a full disk under our stdout: the next portion may fit again
