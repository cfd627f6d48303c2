"""Which lines of a block may hold a sample, or a time that the samples behind them need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stallwatch_rules.patterns import hyperscan

# One of these is in every line that `extract` takes anything from. A line is hit once, at its end, however
# often a bar is drawn in it.
_METRICS = (
    r"(?:[Ss][Tt][Ee][Pp]|[Ii][Tt][Ee][Rr]|[Ll][Oo][Ss][Ss]|[Nn][Uu][Mm]_[Uu][Pp][Dd]|OVERFLOW|overflow"
    r"|train_runtime|MA [0-9]|MemAlloc|memory \(MB\) \||\xe2\x94\x81|Average reward|amples/sec:"
    r"|s:[0-9]{1,15} t[re]l:|[0-9] \[[0-9:]+<)[^\n]*\n"
)
# Lines that surely begin with a time (behind the end of the line before), and those that may tell one.
_SURE = (
    r"\n\[?20[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])[ T]"
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9][^0-9]"
)
_STAMPS = r"[0-9]{2}:[0-9]{2}:[0-9]{2}[^\n]*\n"
_RANKED = (b"ank", b"ANK", b"[default", b"]<std", b"[trainer", b"[worker")


def _places(data: bytes, words: Sequence[bytes]) -> list[int]:
    """Where any of the words stands."""
    places: list[int] = []
    for word in words:
        at = data.find(word)
        while at >= 0:
            places.append(at)
            at = data.find(word, at + 1)
    return places


class Found(NamedTuple):
    """What there is to read in a block; lines are counted from 0."""

    lines: list[tuple[int, int, int]]  #: number, start and end of the lines to read
    clocks: list[tuple[int, int]]  #: number and start of those that tell their source's time and nothing else
    size: int  #: lines in the block


class Candidates:
    """Finds them with hyperscan, a pass for each question: one for all together takes longer."""

    def __init__(self) -> None:
        self._scans = [_Scan(pattern) for pattern in (_METRICS, _SURE, _STAMPS)]

    def lines(self, data: bytes) -> Found:
        """Look through a block, which ends with a line."""
        newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
        behind = b"\n" + data
        metrics, sure, stamps = (
            np.searchsorted(newlines, np.array(scan.ends(behind), np.int64) - 2) for scan in self._scans
        )
        starts = np.concatenate([[0], newlines[:-1] + 1])
        only = np.setdiff1d(sure, metrics)
        ranked = np.isin(only, np.searchsorted(newlines, np.array(_places(data, _RANKED), np.int64)))
        wanted = np.union1d(np.union1d(metrics, np.setdiff1d(stamps, sure)), only[ranked])
        plain = only[~ranked]
        followed = np.searchsorted(wanted, plain)
        clocks = plain[np.append(followed[:-1] != followed[1:], True)] if len(plain) else plain
        return Found(
            list(zip(wanted.tolist(), starts[wanted].tolist(), newlines[wanted].tolist(), strict=True)),
            list(zip(clocks.tolist(), starts[clocks].tolist(), strict=True)),
            len(newlines),
        )


class _Scan:
    """One pattern's database."""

    def __init__(self, pattern: str) -> None:
        self._database = hyperscan.Database()
        self._database.compile(expressions=[pattern.encode()], ids=[0], elements=1, flags=[0])
        self._scratch: Any = hyperscan.Scratch(self._database)

    def ends(self, data: bytes) -> list[int]:
        """Where its matches end."""
        ends: list[int] = []

        def on_match(_id: int, _start: int, end: int, _flags: int, _context: object) -> None:
            ends.append(end)

        self._database.scan(data, match_event_handler=on_match, scratch=self._scratch)
        return ends
