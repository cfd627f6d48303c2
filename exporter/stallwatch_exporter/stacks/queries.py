"""Query a rank for its stacks through a pipe, with a signal to faulthandler, or with py-spy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from stallwatch_exporter.probe.events import MOST_LINE
from stallwatch_exporter.probe.stacks import ANSWER, FAULT, MOST_BYTES, QUERY, SIGNAL
from stallwatch_exporter.rings.presence import inspect_process
from stallwatch_exporter.stacks.processes import PROC, handles
from stallwatch_rules.stacks.kinds import is_library
from stallwatch_rules.stacks.reading import from_py_spy, main_thread
from stallwatch_rules.stacks.records import Frame, ThreadStack
from stallwatch_rules.text.foreign_json import read_json

_SETTLED_SECONDS = 0.5  # seconds without growth after which a dump is complete, even on a busy machine


def send(ring: Path, query: str) -> bool:
    """Write a query to the pipe next to the ring and return whether a reader has opened the pipe."""
    try:
        fd = os.open(ring.with_suffix(QUERY), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # ENXIO: no process reads the pipe
        return False
    try:
        os.write(fd, f"{query}\n".encode())
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def answer(ring: Path, query: str, suffix: str = ANSWER) -> dict[str, Any] | None:
    """Return a part of the rank's answer to this query or a later query, or ``None`` if there is none yet."""
    try:
        with ring.with_suffix(suffix).open("rb") as file:
            found = read_json(file.read(MOST_BYTES + 1))
        return found if isinstance(found, dict) and int(str(found.get("asked"))) >= int(query) else None
    except (OSError, ValueError):
        return None


def has_left(ring: Path, *, well: bool = False) -> bool:
    """Return whether the rank reported the end of its program.

    If `well` is true, consider only an end without an error.

    The process of the rank can continue for a while after this report.
    """
    try:
        with ring.with_suffix(".jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_LINE))
            last = read_json(file.read().rstrip(b"\n").rpartition(b"\n")[2])
    except (OSError, ValueError):
        return False
    left = isinstance(last, dict) and last.get("kind") == "left"
    return left and (not well or last.get("error") is False)


class FaultDump:
    """Dump of a process's stacks by faulthandler."""

    def __init__(self, ring: Path, pid: int) -> None:
        self._path = ring.with_suffix(FAULT)
        self._pid = pid
        self._begin = self._size = 0
        self._grown = 0.0
        self.sent = self._send(ring)

    def text(self) -> str | None:
        """Return the dump when it is complete, or ``None`` while it does not exist or is still growing."""
        try:
            size = self._path.stat().st_size
            now = time.monotonic()
            if size != self._size:
                self._size, self._grown = size, now
            if size == self._begin or now - self._grown < _SETTLED_SECONDS:
                return None
            with self._path.open("rb") as file:
                file.seek(self._begin)
                return file.read(MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            return None

    def _send(self, ring: Path) -> bool:
        """Send the signal if it is certain to reach faulthandler. Return whether the signal was sent."""
        try:
            number, fd = (int(word) for word in ring.with_suffix(SIGNAL).read_text("ascii").split())
            about = self._path.stat()
            opened = (PROC / str(self._pid) / "fd" / str(fd)).stat()
            # The training program can close descriptors that it did not open, and reuse their numbers for
            # other files.
            if (about.st_dev, about.st_ino) != (opened.st_dev, opened.st_ino):
                return False
            if not handles(self._pid, number):
                return False
            self._begin = self._size = about.st_size
            os.kill(self._pid, number)
            return True
        except (OSError, ValueError):
            return False


_WORKER_LOOP = "_worker_loop"  # main function of a data worker, in torch/utils/data/_utils/worker.py


def busy_worker(pid: int, patience: float) -> tuple[int | None, tuple[Frame, ...]]:
    """Return the process ID and the stack of a rank's data worker that runs user code.

    Workers that do not run user code wait for their next batch. If py-spy is not installed, the result is
    empty.
    """
    program, end = find_py_spy(), time.monotonic() + patience
    if program is None:
        return None, ()
    for child in inspect_process(pid, psutil.Process.children, list[psutil.Process]()):
        left = end - time.monotonic()
        if left <= 0:
            break
        main = main_thread(spied(program, child.pid, left))
        frames = main.frames if main is not None else ()
        loops = [at for at, frame in enumerate(frames) if frame.function == _WORKER_LOOP]
        below = frames[loops[-1] :] if loops else ()  # a forked worker's stack starts with its parent's calls
        if any(not is_library(frame) for frame in below):
            return child.pid, below
    return None, ()


def find_py_spy() -> str | None:
    """Return the path of the py-spy beside the Python interpreter or in ``PATH``, or ``None`` if missing."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def spied(program: str, pid: int, patience: float) -> tuple[ThreadStack, ...]:
    """Return a process's threads. If py-spy cannot read them (strict ptrace rules), return no threads."""
    # Pass --nonblocking because, by default, py-spy pauses the process while it reads the stacks.
    command = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return from_py_spy(done.stdout) if done.returncode == 0 else ()
