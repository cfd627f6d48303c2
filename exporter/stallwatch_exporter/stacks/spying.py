"""Stacks read from outside by py-spy, where it is installed: for ranks that cannot tell them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from stallwatch_exporter.stacks.processes import children_of
from stallwatch_rules.stacks.kinds import is_library
from stallwatch_rules.stacks.reading import from_py_spy, main_thread
from stallwatch_rules.stacks.records import Frame, ThreadStack

_WORKER_LOOP = "_worker_loop"  # torch/utils/data/_utils/worker.py


def busy_worker(pid: int, patience: float) -> tuple[int | None, tuple[Frame, ...]]:
    """The child of a rank that runs the user's own code, and its stack: the data loader's worker to look at.

    The others wait for what to load next. Nothing without py-spy.
    """
    program, end = find_py_spy(), time.monotonic() + patience
    for child in children_of(pid) if program is not None else ():
        left = end - time.monotonic()
        if program is None or left <= 0:
            break
        main = main_thread(spied(program, child, left))
        below = _below_loader(main.frames) if main is not None else ()
        if any(not is_library(frame) for frame in below):
            return child, tuple(below)
    return None, ()


def _below_loader(frames: Sequence[Frame]) -> Sequence[Frame]:
    """What a worker calls: a forked one has its parent's calls above its own."""
    loops = [at for at, frame in enumerate(frames) if frame.function == _WORKER_LOOP]
    return frames[loops[-1] :] if loops else ()


def find_py_spy() -> str | None:
    """Where py-spy is: beside the Python that we run on, or on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def spied(program: str, pid: int, patience: float) -> tuple[ThreadStack, ...]:
    """The threads of a process; none where py-spy may not read it, as the system's rules for ptrace say."""
    # Not blocking: by default py-spy stops the process while it reads.
    command = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return from_py_spy(done.stdout) if done.returncode == 0 else ()
