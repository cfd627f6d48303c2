"""What the programs of the live benchmark share: when their event happens, and work that only takes time.

They simulate: what would compute for seconds sleeps instead, but inside the real call (a dataset, a forward,
a write into a slow file), so that Stallwatch sees what it would see of the real thing.
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
HOUR = 3600.0  #: a hang: longer than anybody waits


def event(what: str) -> None:
    """Write down that it happens now, where Stallwatch does not look."""
    with Path(os.environ.get("STALLWATCH_BENCH_EVENT", "/dev/null")).open("a") as file:
        file.write(f"BENCH EVENT {time.time():.3f} {os.getpid()} {what}\n")


def about(seconds: float, spread: float = 0.2) -> float:
    """A duration of this seed, up to a fifth more."""
    return seconds * (1 + spread * random.Random(SEED).random())


def say(*words: object) -> None:
    """Print on rank 0."""
    if RANK == 0:
        print(*words, flush=True)


class SlowFile:
    """A file on storage that takes its time: ``seconds`` for ``size`` bytes."""

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
    """Run the scenario that the command line names, a function of the calling module."""
    scenario: Callable[[], None] = scenarios[sys.argv[1]]
    scenario()
