"""Pauses that a log tells of only when they are over, such as evaluations by their results.

How long the first few of them take says little of the next: the last one of a run may be on all the data.
Where they come after equally many steps, it is known when the next may begin; elsewhere nothing is lost.
"""

from __future__ import annotations

from collections import deque

_LIKE = 0.1  # rounds that differ by no more are alike, and the next pause may come so much early or late
_LEAST = 5  # steps: shorter rounds would make each step one before a pause


class Rounds:
    """Counts the signs of training between such pauses."""

    def __init__(self) -> None:
        self._signs = 0
        self._ended: deque[int] = deque(maxlen=2)

    def trained(self) -> None:
        """A sign of training."""
        self._signs += 1

    def paused(self, *, announced: bool) -> None:
        """The training paused; what is `announced` is known when it begins, and needs no foresight."""
        if announced:
            self._ended.clear()
        else:
            self._ended.append(self._signs)
        self._signs = 0

    @property
    def due(self) -> bool:
        """Whether the next pause may have begun."""
        if len(self._ended) < 2:
            return False
        least, most = min(self._ended), max(self._ended)
        alike = least >= _LEAST and most <= least * (1 + _LIKE)
        return alike and least * (1 - _LIKE) <= self._signs <= most * (1 + _LIKE)
