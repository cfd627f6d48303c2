"""Choose one of several optimizers or engines to count the run's steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

optimizers: weakref.WeakSet[Any] = weakref.WeakSet()  #: optimizers that completed a step

_SILENT_FOR = 10  # number of steps by other optimizers after which an inactive leader is replaced


class Leader:
    """Selector of the optimizer that counts a run's steps: the first optimizer that completes a step.

    A step of the run can include steps of several optimizers but must be counted only once.
    """

    def __init__(self) -> None:
        self.leader: Callable[[], Any] = _no_leader
        self.followed = 0  #: number of leaders so far
        self._others = 0
        self._made = -1.0  # step number of the run when another optimizer last completed a step

    def steps(self, optimizer: Any, made: float) -> bool:
        """Return whether a step of `optimizer` is a step of the run, which has completed `made` steps."""
        leader = self.leader()
        if leader is not optimizer:
            self._others = self._others + 1 if made == self._made else 1
            self._made = made
            if leader is not None and self._others <= _SILENT_FOR:
                return False
            self.follow(optimizer)
        return True

    def follow(self, optimizer: Any) -> None:
        """Make `optimizer` the leader."""
        self.leader = weakref.ref(optimizer)
        self.followed += 1

    def leave(self) -> None:
        """Remove the leader because other hooks count the steps."""
        self.leader = _no_leader

    def is_leader(self, optimizer: Any) -> bool:
        """Return whether no other optimizer leads, so that the values of `optimizer` are the run's values."""
        leader = self.leader()
        return leader is None or leader is optimizer


def _no_leader() -> None:
    return None
