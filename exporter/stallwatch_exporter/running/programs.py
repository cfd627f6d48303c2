"""Find the programs of a command: the training processes below shells and launchers.

Shells and launchers start programs, and each program manages the processes that it starts. Therefore, the
search stops at a Python program that is not a launcher, except for child processes that have a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallwatch_exporter import steady
from stallwatch_exporter.rings.exits import Exits
from stallwatch_exporter.rings.presence import is_there
from stallwatch_exporter.stacks.local_ranks import launches

_MOST = 256  #: Maximum number of processes that a search visits. A run has fewer processes on one host.
_SHELLS = frozenset(("bash", "dash", "sh", "zsh", "ksh", "fish"))


class Program(msgspec.Struct, frozen=True):
    """A Python program that a command started."""

    pid: int
    seen: float  #: steady time at which the program was found
    rank: int | None  #: rank from the program's environment, or ``None`` if there is none
    words: tuple[str, ...] = ()  #: command line


class Programs:
    """Find the programs that a command starts. Call ``look`` about once a second."""

    def __init__(self, words: Sequence[str]) -> None:
        self.command: int | None = None  #: process ID of the command
        self.script = _script(words)  #: script that the command runs, if the command is a shell
        self.exits = Exits()
        self.known: dict[int, Program] = {}  #: programs by process ID

    def look(self) -> None:
        """Find programs that have started since the last call, and watch these programs until they end."""
        if self.command is None:
            return
        waiting, seen = [self.command], 0
        while waiting and seen < _MOST:
            pid = waiting.pop()
            seen += 1
            if pid not in self.known or not self.is_up(self.known[pid]):
                words = _read(pid, "cmdline").split("\0")[:-1]
                if not _is_python(words) or launches(words):
                    waiting += _children(pid)
                    continue
                program = self.known[pid] = Program(pid, steady.now(), _rank(pid), tuple(words))
                self.exits.watch(program, pid, program.seen)
            # A shell replaces itself with the last program of its script, so other ranks can be children of
            # this program.
            if self.script and pid == self.command:
                waiting += [each for each in _children(pid) if _rank(each) not in (None, _rank(pid))]

    def is_up(self, program: Program) -> bool:
        """Return whether the program is still running."""
        return program not in self.exits.ended_at and is_there(program.pid, steady.wall(program.seen))

    def close(self) -> None:
        """Stop watching for exits."""
        self.exits.close()


def _rank(pid: int) -> int | None:
    """Return the rank in the environment of a process, or ``None`` if there is none."""
    environ = dict(each.split("=", 1) for each in _read(pid, "environ").split("\0") if "=" in each)
    rank = environ.get("RANK") or environ.get("LOCAL_RANK") or ""
    return int(rank) if rank.isdigit() else None


def _children(pid: int) -> list[int]:
    """Return the IDs of the processes that the main thread of `pid` started, if the kernel lists them."""
    return [int(each) for each in _read(pid, f"task/{pid}/children").split()]


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text("utf-8", "replace")
    except OSError:
        return ""


def _is_python(words: list[str]) -> bool:
    return bool(words) and Path(words[0]).name.startswith("python")


def _script(words: Sequence[str]) -> str:
    """Return the script in ``bash -c SCRIPT``, or an empty string for other commands."""
    if not words or Path(words[0]).name not in _SHELLS:
        return ""
    flags = [at for at, word in enumerate(words) if word.startswith("-") and "c" in word]
    return words[flags[0] + 1] if flags and len(words) > flags[0] + 1 else ""
