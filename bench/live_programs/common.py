"""Shared parts of the live benchmark's programs: records of events, and work that only takes time.

To simulate computation, the programs sleep inside the real call (such as a dataset, a forward pass, or a
write into a slow file). Therefore, Stallwatch sees the same calls as in a real training run.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
SEED = int(os.environ.get("STALLWATCH_BENCH_SEED", "1"))
CHANCE = random.Random(SEED)
HOUR = 3600.0  #: duration of a hang, longer than any limit of the benchmark


def event(what: str) -> None:
    """Record the time of an event in a file that Stallwatch does not read."""
    with Path(os.environ.get("STALLWATCH_BENCH_EVENT", "/dev/null")).open("a") as file:
        file.write(f"BENCH EVENT {time.time():.3f} {os.getpid()} {what}\n")


def about(seconds: float, spread: float = 0.2) -> float:
    """Return a random duration, up to a fifth longer than `seconds`, that depends on the seed."""
    return seconds * (1 + spread * random.Random(SEED).random())


def say(*words: object) -> None:
    """Print only on rank 0."""
    if RANK == 0:
        print(*words, flush=True)


class SlowFile:
    """A file on slow storage. A write of ``size`` bytes takes ``seconds`` seconds."""

    def __init__(self, path: Path, seconds: float, size: int) -> None:
        self._file = path.open("wb", buffering=0)
        self._pause = seconds / size
        self._chunk = max(size // 100, 1)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), self._chunk):
            part = view[start : start + self._chunk]
            self._file.write(part)
            time.sleep(self._pause * len(part))
        return len(view)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> SlowFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run(scenarios: dict[str, Any]) -> None:
    """Run the scenario that the command line names. Each scenario is a function of the calling module."""
    scenario: Callable[[], None] = scenarios[sys.argv[1]]
    scenario()
