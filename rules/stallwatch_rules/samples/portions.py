"""A block's segments by their wordings: which are to be read, and their bytes put together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from stallwatch_rules.matching.segments import segment_ends
from stallwatch_rules.samples.blocks import Whole
from stallwatch_rules.samples.wordings import BAR, CLOCK, DIGITS, EMPTY, READ, Codes, Kinds, Wordings

_LF = 10
_RETURNS = bytes.maketrans(b"\r", b"\n")


class Picked(NamedTuple):
    """Some segments, in the order in which they were asked for."""

    places: Whole  #: which segment of the block
    data: bytes  #: their bytes, each with its line feed or carriage return
    ends: Any  #: where each begins, and where the last one ends

    def all(self) -> bytes:
        """All of them, each ended by a line feed."""
        return self.text(0, len(self.places))

    def text(self, first: int, behind: int) -> bytes:
        """Those from one to another, each ended by a line feed."""
        data = self.data[self.ends[first] : self.ends[behind]]
        return data.replace(b"\r", b"\n")


class Portion:
    """One block, cut at line feeds, carriage returns, and where a line stands behind a bar."""

    def __init__(self, data: bytes, wordings: Wordings) -> None:
        if b"\0" in data:  # holes that a truncated file leaves
            data = data.replace(b"\0", b"")
        known = -1
        while known < len(wordings.glues):  # a wording may show what is glued to bars in this log
            known = len(wordings.glues)
            text = data
            for glue in wordings.glues:
                text = text.replace(glue, glue[:3] + b"\r" + glue[3:])
            codes = wordings.codes(text.translate(_RETURNS, DIGITS).split(b"\n"))[:-1]
        array = np.frombuffer(text, np.uint8)
        returns = b"\r" in text
        ends = segment_ends(text, returns)
        starts_line = np.ones(len(ends), bool)
        starts_line[1:] = array[ends[:-1]] == _LF
        self.wordings: Codes = codes
        self.lines: Codes = np.cumsum(starts_line, dtype=np.int32) - 1  #: the line of each segment
        kinds = wordings.kinds()[codes]
        if returns:  # only what a line begins with surely tells its time
            kinds[(kinds == CLOCK) & ~starts_line] = READ
        self.dropped = _redrawn_bars(kinds, self.lines)  #: bars that the next one of their line stands for
        kinds[self.dropped] = 0
        self.read: Whole = np.flatnonzero(kinds & READ)
        self._clocks: Whole = np.flatnonzero(kinds & CLOCK)
        offsets = np.concatenate([[0], ends + 1]).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        self._segments = pa.Array.from_buffers(pa.binary(), len(ends), buffers)

    def pick(self, places: Whole) -> Picked:
        """The bytes of some segments."""
        taken = self._segments.take(pa.array(places))
        _, offsets, data = taken.buffers()
        ends = np.frombuffer(offsets, np.int32)[: len(places) + 1].tolist()
        return Picked(places, b"" if data is None else data.to_pybytes(), ends)

    def clocks(self, *, all_of_them: bool = False) -> Whole:
        """The lines that tell their source's time: those that one to be read, or the block's end, follows."""
        clocks = self._clocks
        if all_of_them or not len(clocks):
            return clocks
        followed = np.searchsorted(self.read, clocks)
        last: Whole = clocks[np.append(followed[:-1] != followed[1:], True)]
        return last


def _redrawn_bars(kinds: Kinds, lines: Codes) -> Whole:
    bars = np.flatnonzero(kinds & BAR)
    if not len(bars):
        return bars
    full = np.cumsum((kinds & EMPTY) == 0, dtype=np.int32)[bars]  # those between two bars count
    lines = lines[bars]
    followed: Whole = bars[:-1][(np.diff(full) == 1) & (lines[:-1] == lines[1:])]
    return followed
