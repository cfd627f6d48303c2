"""The programs that a command consists of: below its shells and launchers, the processes that train.

A shell or a launcher starts programs; a program answers for whatever it starts itself. So a Python program
that is no launcher is looked at, and nothing below it, unless a launcher gave it a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallwatch_exporter import steady
from stallwatch_exporter.rings.exits import Exits
from stallwatch_exporter.rings.presence import is_there
from stallwatch_exporter.stacks.local_ranks import launches

_MOST = 256  #: processes that are looked at in one go; jobs have fewer on one host
_SHELLS = frozenset(("bash", "dash", "sh", "zsh", "ksh", "fish"))


class Program(msgspec.Struct, frozen=True):
    """A Python program of the command."""

    pid: int
    seen: float  #: when it was found, steady time
    rank: int | None  #: as its environment says; ``None`` without one
    words: tuple[str, ...] = ()  #: its command line


class Programs:
    """Call ``look`` about once a second while the command runs. `words` is its command line."""

    def __init__(self, words: Sequence[str]) -> None:
        self.command: int | None = None  #: its process
        self.script = _script(words)  #: that a shell was given, where it is one
        self.exits = Exits()
        self.known: dict[int, Program] = {}  #: by process number

    def look(self) -> None:
        """Find programs that have come since the last look, and watch for their ends."""
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
                self._add(pid, words)
            if self.script and pid == self.command:  # a shell becomes the last program of its script
                waiting += [each for each in _children(pid) if _rank(each) not in (None, _rank(pid))]

    def is_up(self, program: Program) -> bool:
        """Whether the program still runs."""
        return program not in self.exits.ended_at and is_there(program.pid, steady.wall(program.seen))

    def close(self) -> None:
        """Nobody asks any more."""
        self.exits.close()

    def _add(self, pid: int, words: Sequence[str]) -> None:
        program = self.known[pid] = Program(pid, steady.now(), _rank(pid), tuple(words))
        self.exits.watch(program, pid, program.seen)


def _rank(pid: int) -> int | None:
    """Return the rank that the environment of a process names."""
    environ = dict(each.split("=", 1) for each in _read(pid, "environ").split("\0") if "=" in each)
    rank = environ.get("RANK") or environ.get("LOCAL_RANK") or ""
    return int(rank) if rank.isdigit() else None


def _children(pid: int) -> list[int]:
    """Return processes that its main thread started; none if the kernel keeps no such list."""
    return [int(each) for each in _read(pid, f"task/{pid}/children").split()]


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text("utf-8", "replace")
    except OSError:
        return ""


def _is_python(words: list[str]) -> bool:
    return bool(words) and Path(words[0]).name.startswith("python")


def _script(words: Sequence[str]) -> str:
    """The script in ``bash -c SCRIPT``."""
    if not words or Path(words[0]).name not in _SHELLS:
        return ""
    flags = [at for at, word in enumerate(words) if word.startswith("-") and "c" in word]
    return words[flags[0] + 1] if flags and len(words) > flags[0] + 1 else ""
