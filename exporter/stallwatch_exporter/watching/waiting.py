"""Matches that wait a moment before they are reported: more may come, or the run may end."""

from __future__ import annotations

from stallwatch_rules.judgements.conclusions import LOSS_NAN
from stallwatch_rules.records import Match

#: Time for the other lines of a failure to come, and for the run to end: a crash is one message.
GATHER_SECONDS = 2.0
#: After the last rank that was seen to fail: launchers take some seconds to end the others, and themselves.
ENDING_SECONDS = 10.0
_ENDING_AT_MOST = 30.0  # a launcher may start its ranks anew, to fail again
#: A line that shows no finite loss is fatal if none with one follows; several in a row are a warning before.
_HELD_SECONDS = {LOSS_NAN: 20.0}


class Waiting:
    """The first match of each rule, until it is due."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, Match]] = {}

    def __contains__(self, rule: str) -> bool:
        return rule in self._until

    def add(self, match: Match, now: float, *, held: bool = False) -> None:
        """Let it wait; `held`: for as long as its rule asks for."""
        seconds = _HELD_SECONDS.get(match.rule, GATHER_SECONDS) if held else GATHER_SECONDS
        self._until.setdefault(match.rule, (now + seconds, match))

    def due_in(self, now: float, *, ending: bool) -> float:
        """Seconds until the next one is due; infinity if nothing waits. `ending`: the run seems to end."""
        left = (self._left(until, now, ending) for until, _ in self._until.values())
        return min(left, default=float("inf"))

    def take(self, now: float, *, ending: bool, everything: bool = False) -> list[tuple[str, Match]]:
        """Those that are due, or all, with their rules; they wait no longer."""
        due = [
            (rule, match)
            for rule, (until, match) in self._until.items()
            if everything or self._left(until, now, ending) <= 0
        ]
        for rule, _ in due:
            del self._until[rule]
        return due

    def clear(self) -> None:
        """Forget all of them."""
        self._until.clear()

    def _left(self, until: float, now: float, ending: bool) -> float:
        left = until - now
        if left > max(_HELD_SECONDS.values()):
            return 0.0  # a clock that was set back is no reason to wait
        return max(0.0, left + (_ENDING_AT_MOST - GATHER_SECONDS if ending else 0.0))
