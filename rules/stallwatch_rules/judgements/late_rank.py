"""The rank that all others wait for in each step, by what each did itself before they met.

The times of whole steps are the same for all ranks of a synchronous training. What differs is when a rank
begins its backward pass, in which the gradients are reduced: the last one is whom the others wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

STEPS = 30  #: the last steps, of which …
LATE = 27  #: … a rank is late in so many …
IN_A_ROW = 15  #: … or in so many at the end: of ranks that vary alike, none is in one run of a thousand
SHARE = 0.2  #: of a step by which it must be later than the others
LEAST_SECONDS = 0.05  #: the same in seconds: in very short steps a printed line makes a rank late
IN_STEP = 0.15  #: of a step by which the ranks' own times may differ: else they do not wait for each other
OVER = 10  #: late steps among the last ones below which it has caught up
_MOST_OPEN = 100  # steps that some rank has not reported yet; a rank so far from the others is gone


class Own(NamedTuple):
    """One step of one rank."""

    own: float  #: seconds from the end of the step before to its backward pass
    whole: float  #: seconds that the step took
    tokens: float = 0.0  #: that it was of; 0: not counted


class LateRank(NamedTuple):
    """A rank that the others wait for."""

    rank: int
    later: float  #: seconds by which it comes later than the others, as a median
    share: float  #: of the step
    steps: int  #: among how many


class LateRanks:
    """Takes the steps of all ranks, in any order, and knows whether one of them holds the others up."""

    def __init__(self) -> None:
        self._open: dict[int, dict[int, Own]] = {}  # by step, then by rank
        self._at: dict[int, int] = {}  # by rank: the last step that it reported
        self._steps: deque[Mapping[int, Own]] = deque(maxlen=STEPS)
        self.late: LateRank | None = None

    def see(self, rank: int, step: int, own: Own) -> bool:
        """Take a step of a rank; whether the answer in ``late`` became another rank, or none."""
        before = self.late
        if step not in self._open:
            self._forget(step)
        self._at[rank] = step
        reported = self._open.setdefault(step, {})
        reported[rank] = own
        if len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]  # the oldest; a restart may have gone back to lower ones
        if self.compares and len(reported) >= len(self._at):
            self._steps.append(self._open.pop(step))
            self.late = self._judge(self.late)
        return (before and before.rank) != (self.late and self.late.rank)

    @property
    def compares(self) -> bool:
        """Whether several ranks report their steps."""
        return len(self._at) >= 2

    def _forget(self, step: int) -> None:
        """Drop the ranks that are gone, such as those that a restart did without."""
        self._at = {rank: at for rank, at in self._at.items() if abs(step - at) < _MOST_OPEN}
        if self.late is not None and (self.late.rank not in self._at or not self.compares):
            self.late = None

    def _judge(self, before: LateRank | None) -> LateRank | None:
        steps = [one for one in self._steps if one.keys() == self._at.keys()]
        if len(steps) < STEPS:
            return before
        whole = {rank: median(one[rank].whole for one in steps) for rank in self._at}
        if max(whole.values()) - min(whole.values()) > IN_STEP * min(whole.values()):
            return None  # each goes at its own pace
        usual = median(whole.values())
        for rank in sorted(self._at):
            by = [_later(rank, one) for one in steps]
            late = [each > max(SHARE * usual, LEAST_SECONDS) for each in by]
            known = before is not None and before.rank == rank
            if sum(late) >= (OVER if known else LATE):
                return LateRank(rank, median(by), median(by) / usual, len(steps))
            if all(late[-IN_A_ROW:]):
                latest = median(by[-IN_A_ROW:])
                return LateRank(rank, latest, latest / usual, IN_A_ROW)
        return None


def _later(rank: int, step: Mapping[int, Own]) -> float:
    """How much later than the usual one of the others it came."""
    return step[rank].own - median(own.own for other, own in step.items() if other != rank)
