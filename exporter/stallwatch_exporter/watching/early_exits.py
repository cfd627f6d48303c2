"""Ranks that end by themselves, without an error, while others go on.

A launcher that sees an exit code other than 0 ends all ranks; of a rank that leaves with 0 nobody says
a word, and the others wait for it until a timeout.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from stallwatch_exporter.rings.reader import Record
from stallwatch_rules.endings import Left
from stallwatch_rules.stream import NO_CODES


class EarlyExits:
    """Hand it every event and record, then which ranks are there."""

    def __init__(self) -> None:
        self.left: list[Left] = []  #: those that left, with the last step that each told of
        self.codes: Mapping[int, int] = {}  #: of ranks that are gone
        self._steps: dict[int, int] = {}
        self._well: dict[int, float] = {}  # ranks that said that they leave without an error, and when
        self._badly: dict[int, float] = {}  # … with an error
        self._gone: set[int] = set()  # … while others were up that had not said so
        self._ends: dict[int, list[float]] = {}  # when each rank said so, while no other program steps
        self._since: dict[int, dict[int, int]] = {}  # by rank that left: where the others were then

    def heard(self, event: Mapping[str, Any]) -> None:
        """A ``left`` event: the interpreter of a rank ends."""
        rank = event.get("rank")
        if isinstance(rank, int) and rank >= 0:
            of_its_kind = self._well if event.get("error") is False else self._badly
            of_its_kind[rank] = float(event.get("time", 0.0))
            self._ends.setdefault(rank, []).append(of_its_kind[rank])
            self._since[rank] = {other: step for other, step in self._steps.items() if other != rank}

    def record(self, record: Record) -> None:
        """A rank is at some step."""
        for ended in (self._well, self._badly):
            if record.time > ended.get(record.rank, record.time):  # a launcher started it anew
                del ended[record.rank]
        step = record.values.get("step", float("nan"))
        if step == step:
            ended_before = any(at < record.time for at in self._ends.get(record.rank, ()))
            if ended_before and int(step) != self._steps.get(record.rank):  # not what its end still counted
                self._forget(record.time)
            self._steps[record.rank] = int(step)
            for left, at in self._well.items():
                others = self._since.setdefault(left, {})
                if left != record.rank and (record.time <= at or record.rank not in others):
                    others[record.rank] = int(step)

    def _forget(self, now: float) -> None:
        """Another program trains, maybe with fewer ranks: nobody misses those that the one before had."""
        for ended in (self._well, self._badly):
            for rank in [rank for rank, at in ended.items() if at < now]:
                del ended[rank]
        self._ends = {rank: [at for at in ends if at >= now] for rank, ends in self._ends.items()}

    @property
    def stepped(self) -> Collection[int]:
        """Ranks that ever told of a step."""
        return self._steps.keys()

    @property
    def well(self) -> Collection[int]:
        """Ranks that said that they leave without an error, whether or not they are gone yet."""
        return self._well.keys()

    @property
    def badly(self) -> Collection[int]:
        """Ranks that said that they leave with an error."""
        return self._badly.keys()

    def last_step(self, rank: int) -> int | None:
        """The last step that this rank told of."""
        return self._steps.get(rank)

    def behind(self, rank: int) -> int:
        """How many steps another rank has made since this one left: each counts in a way of its own."""
        others = self._since.get(rank, {})
        return max((self._steps[other] - step for other, step in others.items()), default=0)

    def look(self, up: Mapping[int, object], codes: Mapping[int, int] = NO_CODES) -> None:
        """Which ranks are up now: each that is known, with something true while it is; codes of the others.

        A bare ``raise SystemExit(1)`` is no error that the rank itself could know of.
        """
        for rank in [one for one in self._well if codes.get(one)]:
            self._badly[rank] = self._well.pop(rank)
        self.codes = codes
        self._gone &= self._well.keys()
        # Its process may take a while to go, after its program has ended.
        if any(is_up and rank not in self._well for rank, is_up in up.items()):
            self._gone |= self._well.keys()
        left = sorted(self._gone | self._silent())
        self.left = [Left(rank, self._steps.get(rank), self.behind(rank)) for rank in left]

    def _silent(self) -> set[int]:
        """Ranks that ended with 0 without reporting it, as by ``os._exit(0)``, if others failed."""
        if not self._badly and not any(self.codes.values()):
            return set()
        ended = {rank for rank, code in self.codes.items() if code == 0 and rank in self._steps}
        return ended - self._well.keys() - self._badly.keys()
