"""Ranks that end by themselves, without an error, while others go on.

A launcher that sees an exit code other than 0 ends all ranks; of a rank that leaves with 0 nobody says
a word, and the others wait for it until a timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stallwatch_exporter.rings.reader import Record
from stallwatch_rules.endings import Left


class Leavers:
    """Hand it every event and record, then which ranks are there."""

    def __init__(self) -> None:
        self.left: list[Left] = []  #: those that left, with the last step that each told of
        self._steps: dict[int, int] = {}
        self._well: dict[int, float] = {}  # ranks that said that they leave without an error, and when
        self._gone: set[int] = set()  # … while others were up that had not said so

    def heard(self, event: Mapping[str, Any]) -> None:
        """A ``left`` event: the interpreter of a rank ends."""
        rank = event.get("rank")
        if isinstance(rank, int) and rank >= 0 and event.get("error") is False:
            self._well[rank] = float(event.get("time", 0.0))

    def record(self, record: Record) -> None:
        """A rank is at some step."""
        if record.time > self._well.get(record.rank, record.time):  # a launcher started it anew
            del self._well[record.rank]
        step = record.values.get("step", float("nan"))
        if step == step:
            self._steps[record.rank] = int(step)

    def look(self, there: Mapping[int, bool]) -> None:
        """Which ranks are up now."""
        self._gone &= self._well.keys()
        # Its process may take a while to go, after its program has ended.
        if any(is_up and rank not in self._well for rank, is_up in there.items()):
            self._gone |= self._well.keys()
        self.left = [Left(rank, self._steps.get(rank)) for rank in sorted(self._gone)]
