"""Detect consecutive NaN or infinite losses that ranks report or that the log contains."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Literal

import msgspec

#: Minimum number of bad losses in a row that rule out a coincidence, because fp16 training skips a step or
#: two to find its loss scale.
SEVERAL = 3
GOOD = 20  #: number of finite losses in a row after which the run has recovered


class _Row(msgspec.Struct):
    seen: int  # number of losses of all counters up to the last loss of this counter
    bad: int = 0
    good: int = 0
    gap: int = 0  # largest number of losses of all counters between two losses of this counter


class NanLosses:
    """A counter of consecutive NaN or infinite losses, with a separate count for each source, such as a rank.

    The result depends only on the losses, so a problem is always reported at the same step of a run.
    """

    def __init__(self) -> None:
        self._rows: dict[Hashable, _Row] = {}
        self._reported: set[Hashable] = set()
        self._losses = 0  # number of losses of all counters

    def see(self, counter: Hashable, loss: float) -> Literal["", "began", "over"]:
        """Count a loss. If a problem with NaN losses began or ended with this loss, return `began` or `over`.

        A problem begins after ``SEVERAL`` bad losses in a row. It ends when each of its sources has had
        ``GOOD`` good losses in a row.
        """
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
        """Forget sources, such as lost ranks, that no longer report losses after their bad losses."""
        for counter in list(self._reported):
            row = self._rows[counter]
            if self._losses - row.seen > max(GOOD, 2 * row.gap):
                self._reported.discard(counter)
                del self._rows[counter]
