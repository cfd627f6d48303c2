"""Run a handler in a thread that has a bounded queue. `put` never waits for the handler."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _End:
    """A marker after the last item in a queue."""


class Worker(Generic[Item]):
    """Passes items to `handle` one after another, in the order of arrival.

    `handle` also receives an event. ``close`` sets the event when the timeout expires. The handler must then
    return promptly. ``failed`` counts the handler's exceptions. ``dropped`` counts items that did not fit
    into the queue or that ``close`` abandoned. The thread calls `begin` before the first item.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[Item, threading.Event], None],
        capacity: int = 1000,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        self.failed = 0
        self.dropped = 0
        self._handle = handle
        self._begin = begin
        self._busy = self._abandoned = False
        self._left = 0
        self._queue: queue.Queue[Item | _End] = queue.Queue(capacity)
        self._closing = threading.Event()
        self._give_up = threading.Event()
        # The thread is a daemon, so that an unreachable chat does not prevent the process from exiting.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: Item) -> bool:
        """Queue the item. Return False if the queue is full or the worker is closed."""
        if not self._closing.is_set():
            try:
                self._queue.put_nowait(item)
                return True
            except queue.Full:
                pass
        self.dropped += 1
        return False

    def close(self, timeout: float) -> bool:
        """Accept no more items. Return whether all queued items were handled within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        if not self._closing.is_set():
            self._closing.set()
            try:
                self._queue.put(_End(), timeout=max(0.0, timeout))
            except queue.Full:
                pass  # setting `_give_up` ends the thread
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self._give_up.set()
        self._thread.join(0.2)
        self._leave()
        return not self._thread.is_alive() and not self._left

    def _leave(self) -> None:
        """Empty the queue and count the removed items and the unfinished item as dropped."""
        left = 0
        with contextlib.suppress(queue.Empty):
            while True:
                left += not isinstance(self._queue.get_nowait(), _End)
        if self._busy and not self._abandoned:
            self._abandoned = True
            left += 1
        self._left += left
        self.dropped += left

    def _run(self) -> None:
        with contextlib.suppress(Exception):
            self._begin()
        while not self._give_up.is_set():
            item = self._queue.get()
            if isinstance(item, _End):
                return
            self._busy = True
            try:
                self._handle(item, self._give_up)
            except Exception:
                if not self._abandoned:
                    self.failed += 1
            self._busy = False
