"""Start processes that represent the ranks of a recorded stall, each at the recorded code position.

Each process calls functions with the names, files, and lines of the recorded stack. Therefore, an agent that
watches a replay reads the same stacks as from the recorded ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from types import FunctionType

from stallwatch_exporter.probe.api import FOLDER_VARIABLE
from stallwatch_exporter.settings import own_main
from stallwatch_rules.stacks.records import StallStacks

_MOST = 64  #: maximum number of ranks that a replay represents


def is_watched(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether an agent would read the stacks of this process's children."""
    return FOLDER_VARIABLE in environ


@contextmanager
def standing_in(stacks: StallStacks) -> Iterator[None]:
    """Until the ``with`` block ends, run a process for each rank that was alive on this host.

    The output of these processes is dropped because it is not part of the recording.
    """
    frames = {
        rank: group.frames
        for group in stacks.groups
        for rank in group.ranks
        if rank in stacks.pids and group.frames and group.condition == "alive"
    }
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank, calls in [*frames.items()][:_MOST]:
            started.append(
                subprocess.Popen(
                    own_main(__name__),
                    env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                )
            )
            pipe = started[-1].stdin
            assert pipe is not None
            with suppress(BrokenPipeError):  # the process could not start
                pipe.write(json.dumps(calls).encode() + b"\n")
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def call(frames: Sequence[str], innermost: Callable[[], object]) -> object:
    """Call `innermost` from nested functions that have these frames, such as ``train.py:30 in main``."""
    inner = innermost
    for frame in reversed(frames):
        place, _, name = frame.rpartition(" in ")
        file, _, line = place.rpartition(":")
        inner = partial(_function(file, int(line) if line.isdecimal() else 0, name), inner)
    return inner()


def _function(file: str, line: int, name: str) -> FunctionType:
    """Return a function that calls its argument and whose frame has this file, line, and name."""
    code = _call.__code__.replace(co_filename=file, co_firstlineno=line, co_name=name.rpartition(".")[2])
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=name)
    return FunctionType(code, {"__name__": "", "__builtins__": {}})


_call = lambda inner: inner()  # noqa: E731 - on one line, so that its call is on the first line


def main() -> None:
    """Represent one rank, whose frames are in the first line of standard input."""
    frames = json.loads(sys.stdin.buffer.readline())
    if "stallwatch_probe" in sys.modules:  # the phase makes this process a rank, so that its probe answers
        import_module("stallwatch_probe.api").current().phase("train")
    call(frames, partial(os.read, 0, 1))  # returns when the replay ends
