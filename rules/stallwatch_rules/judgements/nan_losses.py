"""Losses in a row that are no numbers, whoever reports them: ranks themselves, or lines of the log."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Literal

import msgspec

SEVERAL = 3  #: losses in a row that are no chance: fp16 loses a step or two while it finds its loss scale
GOOD = 20  #: finite losses in a row after which the run has recovered


class _Row(msgspec.Struct):
    seen: int  # how many losses all counters had had at its last one
    bad: int = 0
    good: int = 0
    gap: int = 0  # most losses from one of its own to the next


class NanLosses:
    """Counts, for each counter of losses, how many in a row are NaN or infinite.

    Only the losses count, not when they are looked at: the same run is reported at the same step each time.
    """

    def __init__(self) -> None:
        self._rows: dict[Hashable, _Row] = {}
        self._reported: set[Hashable] = set()
        self._losses = 0  # of all counters

    def see(self, counter: Hashable, loss: float) -> Literal["", "began", "over"]:
        """Take a counter's next loss. `began`: it is the last of ``SEVERAL`` bad ones; `over`: no counter has
        been bad for ``GOOD`` losses."""
        self._losses += 1
        row = self._rows.setdefault(counter, _Row(self._losses))
        row.gap, row.seen = max(row.gap, self._losses - row.seen), self._losses
        if math.isfinite(loss):
            row.bad, row.good = 0, row.good + 1
            if not self._reported or row.good < GOOD:
                return ""
            self._reported.discard(counter)
            self._drop_ended()
            return "" if self._reported else "over"
        row.bad, row.good = row.bad + 1, 0
        if row.bad < SEVERAL or counter in self._reported:
            return ""
        first = not self._reported
        self._reported.add(counter)
        return "began" if first else ""

    def _drop_ended(self) -> None:
        """Forget counters that ended while they were bad: of a rank that is gone, under a name of before."""
        for counter in list(self._reported):
            row = self._rows[counter]
            if self._losses - row.seen > max(GOOD, 2 * row.gap):
                self._reported.discard(counter)
                del self._rows[counter]
