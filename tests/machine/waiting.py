"""Waits for other threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(happens: Callable[[], object]) -> None:
    """Wait for the condition for two minutes at most."""
    until = time.monotonic() + 120
    while not happens():
        assert time.monotonic() < until
        time.sleep(0.01)
