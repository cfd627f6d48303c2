"""Threads without which a training goes on: of those who record it, and the one that reads a child's output.

A thread that fetches batches dies as quietly, and the training stands as soon as what it had fetched is used
up: so only calls that are known to be beside it count. torch's thread that pins batches is known apart: a
training that finds it gone says so itself ("Pin memory thread exited unexpectedly").
"""

from __future__ import annotations

import re

from stallwatch_rules.failures.raised import Frame, Raised
from stallwatch_rules.text.lazy import lazy

_PACKAGES = lazy(r"[/\\](?:site|dist)-packages[/\\]")
_TRACKERS = lazy(
    r"[/\\](?:site|dist)-packages[/\\]"
    r"(?:wandb|swanlab|mlflow|comet_ml|clearml|neptune|tensorboard|tensorboardX)[/\\]"
)
#: What a process raises that asks another which is gone, or was before its file for questions was opened.
_GONE = frozenset(
    ("BrokenPipeError", "ConnectionRefusedError", "ConnectionResetError", "EOFError", "FileNotFoundError")
)


def of_helper(raised: Raised) -> bool:
    """Whether all calls of an exception are a tracker's, or of ``subprocess`` where it reads in a thread.

    Both call Python's own library and what is installed; the outermost installed call tells whose they are.
    """
    if not raised.frames or not all(frame.library for frame in raised.frames):
        return False
    installed = [frame for frame in raised.frames if _PACKAGES.search(frame.path)]
    if installed:
        return _TRACKERS.search(installed[0].path) is not None
    return raised.thread and any(_reads_output(frame) for frame in raised.frames)


def pins_batches(raised: Raised) -> bool:
    """Whether a data loader's thread that pins batches lost a worker (torch's ``_utils/pin_memory.py``).

    What it takes over from a worker that is gone fails in the connection to it (``multiprocessing``).
    """
    names = {frame.name for frame in raised.frames}
    asked = any(re.split(r"[/\\]", frame.path)[-1] == "connection.py" for frame in raised.frames)
    return raised.thread and raised.exception in _GONE and "_pin_memory_loop" in names and asked


def _reads_output(frame: Frame) -> bool:
    """Whether it is the thread of ``subprocess.Popen.communicate`` (Python's ``Lib/subprocess.py``)."""
    return frame.name == "_readerthread" and re.split(r"[/\\]", frame.path)[-1] == "subprocess.py"
