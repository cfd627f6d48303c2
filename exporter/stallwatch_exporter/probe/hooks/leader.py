"""Which of several optimizers or engines counts the run's steps."""

from __future__ import annotations

import weakref
from typing import Any

optimizers: weakref.WeakSet[Any] = weakref.WeakSet()  #: those that made a step

_SILENT_FOR = 10  # steps of others after which a leader that makes none is followed by one that does


class Leader:
    """The first one that steps leads, as long as it goes on: two optimizers make two halves of one step."""

    def __init__(self) -> None:
        self._leader: weakref.ref[Any] | None = None
        self._others = 0

    def steps(self, one: Any) -> bool:
        """`one` made a step: whether it counts."""
        leader = self._leader() if self._leader is not None else None
        if leader is not one:
            self._others += 1
            if leader is not None and self._others <= _SILENT_FOR:
                return False
            self._leader = weakref.ref(one)
        self._others = 0
        return True

    def goes_on(self, one: Any) -> bool:
        """Whether `one` leads already: then its step counts."""
        if self._leader is None or self._leader() is not one:
            return False
        self._others = 0
        return True

    def leave(self) -> None:
        """Nobody leads: others count the steps."""
        self._leader = None

    def leads(self, one: Any) -> bool:
        """Whether what `one` tells is the run's: nobody else has stepped."""
        leader = self._leader() if self._leader is not None else None
        return leader is None or leader is one
