"""Which rings are of the ranks themselves, and which of processes that inherited a rank's number.

A data loader's worker, a compiler's, or a program that a rank calls has the rank's environment and so its
RANK; with torch in it, it makes a ring of its own. A launcher may have a RANK, too (Kubeflow's PyTorchJob).
What tells them from the rank is that they take no steps beside one that does.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from stallwatch_exporter import steady
from stallwatch_exporter.probe.layout import Header
from stallwatch_exporter.rings.presence import is_there
from stallwatch_exporter.rings.reader import RingReader


class _Seen(msgspec.Struct, frozen=True):
    path: Path
    header: Header
    stepped: bool
    last: float  # Unix seconds, of its last record

    @property
    def is_up(self) -> bool:
        return is_there(self.header.pid, steady.wall(self.header.started))


class RankRings:
    """Hand it all rings that are known. What was seen beside a rank stays that when the rank is gone."""

    def __init__(self) -> None:
        self._beside: set[Path] = set()

    def up(self, readers: Iterable[RingReader]) -> dict[int, frozenset[Path]]:
        """For each rank the rings whose process is up: none when it is gone. Unknown ranks are left out."""
        return {
            rank: frozenset(one.path for one in self._own(rings) if one.is_up)
            for rank, rings in _by_rank(readers).items()
        }

    def gone(self, readers: Iterable[RingReader]) -> dict[int, Path]:
        """For each rank of which no process is up the ring of its newest one."""
        own = {rank: self._own(rings) for rank, rings in _by_rank(readers).items()}
        return {
            rank: max(seen, key=lambda one: one.header.started).path
            for rank, seen in own.items()
            if seen and not any(one.is_up for one in seen)
        }

    def leaves(self, one: RingReader, readers: Iterable[RingReader]) -> bool:
        """Whether the end of this ring's process is the end of its rank."""
        rings = [each for each in readers if each.header.rank == one.header.rank]
        own = self._own(rings)
        if one.path not in {each.path for each in own}:
            return False
        if any(each.stepped for each in own):
            return True
        # Before any step: whoever was there first, and still is, is the rank.
        return not any(each.header.started < one.header.started and each.is_up for each in own)

    def _own(self, readers: list[RingReader]) -> list[_Seen]:
        """Those of the rank: processes that step; all of them as long as none does."""
        if len(readers) == 1:
            return [_Seen(readers[0].path, readers[0].header, False, 0.0)]  # whatever it did
        seen = [_seen(reader) for reader in readers]
        stepping = [one for one in seen if one.stepped]
        if not stepping:
            return seen
        lead = max(stepping, key=lambda one: one.last)
        later = [one for one in seen if not one.stepped and one.header.started > lead.last]
        if later and lead.is_up:
            self._beside.update(one.path for one in later)
        # A launcher that restarts its ranks gives each a new process, and so a new ring.
        return [*stepping, *(one for one in later if one.path not in self._beside)]


def _by_rank(readers: Iterable[RingReader]) -> dict[int, list[RingReader]]:
    """Without those whose rank is not known."""
    found: dict[int, list[RingReader]] = {}
    for reader in readers:
        if reader.header.rank >= 0:
            found.setdefault(reader.header.rank, []).append(reader)
    return found


def _seen(reader: RingReader) -> _Seen:
    latest = reader.latest()
    stepped = latest is not None and "step" in latest.values
    return _Seen(reader.path, reader.header, stepped, latest.time if latest is not None else 0.0)
