"""Stored wall-clock times, by the steady clock: no wait shrinks or grows if the wall clock is set."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from stallwatch_exporter import steady

_REMEMBERED = 20_000


class Moments:
    """Each stored time keeps the steady time that it had when it was stored, or first seen, by this process.

    It is never in the future. So what was stored before the clock was set back, or by a host whose clock is
    ahead, waits at most as long again as it was meant to.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, float] = OrderedDict()

    def store(self, now: float) -> float:
        """Return the wall-clock time to store for the steady time `now`."""
        at = steady.wall(now)
        self._keep(at, now)
        return at

    def of(self, at: float, now: float) -> float:
        """Return the steady time of the stored time `at`."""
        return self._keep(at, min(now, at - steady.moved()))

    def first_seen(self, what: str, now: float) -> float:
        """Return when this was first asked about something that another host may have stored."""
        return self._keep(what, now)

    def _keep(self, key: Hashable, moment: float) -> float:
        kept = self._known.setdefault(key, moment)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return kept
