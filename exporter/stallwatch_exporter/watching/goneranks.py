"""Ranks whose process is gone while others go on, whatever ended it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

#: At the end of a run its ranks leave one after the other, and a launcher that sees one die ends the others,
#: or starts all anew: none of that takes longer. The alert for Prometheus follows the incident at once.
GONE_SECONDS = 15.0


class Gone(msgspec.Struct, frozen=True):
    """A rank that is gone."""

    rank: int
    since: float  #: Unix seconds
    step: int | None = None  #: the last one that it told of
    well: bool = False  #: it said that it leaves without an error
    badly: bool = False  #: it said that it leaves with one
    behind: int = 0  #: steps that others made since it said so
    code: int | None = None  #: its exit code, -n for signal n, where that was seen


class GoneRanks:
    """Hand it which processes of which ranks are up, at every look.

    A rank is missed where a process goes on that was up beside it. So none is that left before the others
    came (a script that prepares something under a rank's number), nor one that a launcher goes on without,
    having started the others anew; nor one whose process we cannot see, as it was never seen.

    Once any rank has stepped, only ranks that have can go on. A launcher may have a number of its own, that
    of its pod (Kubeflow's PyTorchJob), and waits for the other hosts when its ranks are gone.
    """

    def __init__(self) -> None:
        self.missed: dict[int, float] = {}  #: since when, by rank; while nobody is there, as it was last
        self._beside: dict[int, frozenset[Path]] = {}  # by rank: the others, when it was seen last
        self._since: dict[int, float] = {}

    def look(
        self,
        up: Mapping[int, frozenset[Path]],
        stepped: Collection[int],
        leaving: Collection[int],
        now: float,
    ) -> None:
        """The rings of all known ranks whose process is up; which ranks ever stepped, and which end now."""
        everybody = frozenset[Path]().union(*up.values())
        working = stepped or up
        staying = frozenset[Path]().union(
            *(rings for rank, rings in up.items() if rank in working and rank not in leaving)
        )
        for rank, rings in up.items():
            if rings:
                self._beside[rank] = everybody - rings
                self._since.pop(rank, None)
            elif staying & self._beside.get(rank, frozenset()):
                self._since.setdefault(rank, now)
            elif staying:
                self._since.pop(rank, None)
        if staying:
            self.missed = {rank: since for rank, since in sorted(self._since.items()) if _long(since, now)}


def _long(since: float, now: float) -> bool:
    return not 0 <= now - since < GONE_SECONDS  # a clock that was set back is no reason to wait
