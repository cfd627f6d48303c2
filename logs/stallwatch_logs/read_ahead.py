"""Portions made in a thread while the last ones are still being used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

_AHEAD = 4  # portions that wait at most

_End = tuple[bytes | None, BaseException | None]


def read_ahead(portions: Iterator[bytes]) -> Iterator[bytes]:
    """The same portions, and behind them the same error. Whoever stops early ends the thread."""
    waiting: queue.Queue[_End] = queue.Queue(_AHEAD)
    enough = threading.Event()

    def make() -> None:
        try:
            for portion in portions:
                waiting.put((portion, None))
                if enough.is_set():
                    return
            waiting.put((None, None))
        except BaseException as error:  # raised again where the portions are used
            waiting.put((None, error))

    thread = threading.Thread(target=make, name="stallwatch-decompress", daemon=True)
    thread.start()
    try:
        while True:
            portion, error = waiting.get()
            if error is not None:
                raise error
            if portion is None:
                return
            yield portion
    finally:
        enough.set()
        while thread.is_alive():
            try:  # room, in case that it waits for some
                waiting.get(timeout=0.01)
            except queue.Empty:
                continue
        thread.join()
