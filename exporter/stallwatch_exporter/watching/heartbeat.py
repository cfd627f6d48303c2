"""Tells those sinks that ask for it that the agent still looks at its run, and whether it sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Heartbeat:
    """Calls ``alive(problem)`` of every sink that has it."""

    def __init__(self, sinks: Sequence[Any]) -> None:
        found = (getattr(sink, "alive", None) for sink in sinks)
        self._listeners: list[Callable[[str], None]] = [alive for alive in found if alive is not None]
        self._errors = 0
        self._unread = 0

    def beat(self, errors: int, unread: int) -> None:
        """The agent looked: so many errors and unread lines there were until now."""
        problems = []
        if errors > self._errors:
            problems.append("something went wrong while the run was looked at")
        if unread > self._unread:
            problems.append("lines were passed through unread")
        self._errors, self._unread = errors, unread
        for alive in self._listeners:
            alive("; ".join(problems))
