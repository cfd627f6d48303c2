"""Which of several optimizers or engines counts the run's steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

optimizers: weakref.WeakSet[Any] = weakref.WeakSet()  #: those that made a step

_SILENT_FOR = 10  # steps of others after which a leader that makes none is followed by one that does


class Leader:
    """The first one that steps leads, as long as it goes on: two optimizers make two halves of one step."""

    def __init__(self) -> None:
        self.leader: Callable[[], Any] = _nobody
        self.followed = 0  #: how many have led
        self._others = 0
        self._made = -1.0  # steps of the run when another one stepped last

    def steps(self, one: Any, made: float) -> bool:
        """`one` made a step after the run's step `made`: whether it counts."""
        leader = self.leader()
        if leader is not one:
            self._others = self._others + 1 if made == self._made else 1
            self._made = made
            if leader is not None and self._others <= _SILENT_FOR:
                return False
            self.follow(one)
        return True

    def follow(self, one: Any) -> None:
        """Let `one` lead."""
        self.leader = weakref.ref(one)
        self.followed += 1

    def leave(self) -> None:
        """Let nobody lead: others count the steps."""
        self.leader = _nobody

    def leads(self, one: Any) -> bool:
        """Return whether the numbers of `one` are the run's: nobody else has stepped."""
        leader = self.leader()
        return leader is None or leader is one


def _nobody() -> None:
    return None
