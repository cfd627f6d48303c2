"""Which lines of a block may hold a sample, or a time that the samples behind them need."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stallwatch_rules.patterns import hyperscan

# One of these is in every line that `extract` takes anything from. A line is hit once, at its end, however
# often a bar is drawn in it.
_METRICS = (
    r"(?:(?:[Ss][Tt][Ee][Pp]|[Ii][Tt][Ee][Rr]|[Nn][Uu][Mm]_[Uu][Pp][Dd])[^\n0-9]{0,44}[0-9]"
    r"|[Ll][Oo][Ss][Ss]|OVERFLOW|overflow|train_runtime|MA [0-9]|MemAlloc|memory \(MB\) \|"
    r"|[0-9]/[0-9]+ \[[0-9:]+<|\xe2\x94\x81|Average reward|amples/sec:|s:[0-9]{1,15} t[re]l:)[^\n]*\n"
)
# Lines that surely begin with a time, and those that may tell one.
_SURE = (
    r"^\[?20[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])[ T]"
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9][^\r\n0-9][^\r\n]*\n"
)
_STAMPS = r"^[^\n]{0,200}[0-9]{2}:[0-9]{2}:[0-9]{2}[^\n]*\n|\r[^\n]{0,200}[0-9]{2}:[0-9]{2}:[0-9]{2}[^\n]*\n"
_SAMPLE, _SURELY, _STAMP = 0, 1, 2
_RANKED = (b"ank", b"ANK", b"[default", b"]<std", b"[trainer", b"[worker")
_LEAD = 300  # characters in which a rank may be named, and a stamp is


class Found(NamedTuple):
    """What there is to read in a block; lines are counted from 0."""

    lines: list[tuple[int, int, int]]  #: number, start and end of the lines to read
    clocks: list[tuple[int, int]]  #: number and start of those that tell their source's time and nothing else
    size: int  #: lines in the block


class Candidates:
    """Finds them, with one pass of hyperscan over the block."""

    def __init__(self) -> None:
        self._database = hyperscan.Database()
        flags = hyperscan.HS_FLAG_MULTILINE
        self._database.compile(
            expressions=[_METRICS.encode(), _SURE.encode(), _STAMPS.encode()],
            ids=[_SAMPLE, _SURELY, _STAMP],
            elements=3,
            flags=[flags, flags, flags],
        )
        self._scratch: Any = hyperscan.Scratch(self._database)

    def lines(self, data: bytes) -> Found:
        """Look through a block, which ends with a line."""
        hits: tuple[list[int], ...] = ([], [], [])

        def on_match(pattern: int, _start: int, end: int, _flags: int, _context: object) -> None:
            hits[pattern].append(end)

        self._database.scan(data, match_event_handler=on_match, scratch=self._scratch)
        newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
        metrics, sure, stamps = (np.searchsorted(newlines, np.array(ends, np.int64) - 1) for ends in hits)
        starts = np.concatenate([[0], newlines[:-1] + 1]) if len(newlines) else newlines
        only = np.setdiff1d(sure, metrics)
        ranked = np.array(
            [any(word in data[start : start + _LEAD] for word in _RANKED) for start in starts[only].tolist()],
            bool,
        )
        wanted = np.union1d(np.union1d(metrics, np.setdiff1d(stamps, sure)), only[ranked])
        plain = only[~ranked]
        followed = np.searchsorted(wanted, plain)
        clocks = plain[np.append(followed[:-1] != followed[1:], True)] if len(plain) else plain
        return Found(
            list(zip(wanted.tolist(), starts[wanted].tolist(), newlines[wanted].tolist(), strict=True)),
            list(zip(clocks.tolist(), starts[clocks].tolist(), strict=True)),
            len(newlines),
        )
