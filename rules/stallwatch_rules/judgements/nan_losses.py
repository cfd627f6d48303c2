"""Losses in a row that are no numbers, whoever reports them: ranks themselves, or lines of the log."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

SEVERAL = 3  #: losses in a row that are no chance: fp16 loses a step or two while it finds its loss scale
GOOD = 20  #: finite losses in a row after which the run has recovered


@dataclass
class _Row:
    bad: int = 0
    good: int = 0
    reported: bool = False


class NanLosses:
    """Counts, for each counter of losses, how many in a row are NaN or infinite.

    Only the losses count, not when they are looked at: the same run is reported at the same step each time.
    """

    def __init__(self) -> None:
        self._rows: dict[Hashable, _Row] = {}

    def see(self, counter: Hashable, loss: float) -> Literal["", "began", "over"]:
        """Take a counter's next loss. `began`: it is the last of ``SEVERAL`` bad ones; `over`: no counter has
        been bad for ``GOOD`` losses."""
        row = self._rows.setdefault(counter, _Row())
        if math.isfinite(loss):
            row.bad, row.good = 0, row.good + 1
            if not row.reported or row.good < GOOD:
                return ""
            row.reported = False
            return "" if any(one.reported for one in self._rows.values()) else "over"
        row.bad, row.good = row.bad + 1, 0
        if row.bad < SEVERAL or row.reported:
            return ""
        first = not any(one.reported for one in self._rows.values())
        row.reported = True
        return "began" if first else ""
