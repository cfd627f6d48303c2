"""Checkpoints that a rank told of are looked at once they are written, here and never in the rank.

They may lie on a file system that is slow or hangs, so a thread beside the watching looks at them. A file
is written piece by piece looks broken meanwhile: only what was found twice, or at the end, is told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stallwatch_exporter.checkpoints.checking import check_checkpoint
from stallwatch_exporter.checkpoints.faults import Fault
from stallwatch_exporter.watching.concerns import line_of
from stallwatch_rules.judgements.concerns import SEEN, evidence_of
from stallwatch_rules.records import Match

SETTLED_SECONDS = 10.0  #: after it was told of, or found unfinished
SURE_SECONDS = 30.0  #: between the first look and the one that counts
FINISH_SECONDS = 2.5  #: how long the end of a run waits for a look that is under way, and for the last one
_MOST_WAITING = 1000

Event = Mapping[str, Any]
Begin = Callable[[Callable[[], None]], None]


@dataclass
class Waiting:
    """A path to look at, and what was wrong with it the last time."""

    path: Path
    event: Event
    number: int
    due: float
    before: set[tuple[Path, str]] = field(default_factory=set)
    found: list[Fault] = field(default_factory=list)


def in_background(job: Callable[[], None]) -> None:
    """Run it in a thread that nobody waits for."""
    threading.Thread(target=job, name="stallwatch checkpoints", daemon=True).start()


class CheckpointWatch:
    """Tell it of paths, and ask it about once a second what is wrong with them."""

    def __init__(self, begin: Begin = in_background) -> None:
        self._begin = begin
        self._waiting: dict[Path, Waiting] = {}
        self._looking: list[Waiting] = []  # handed to the thread
        self._done = threading.Event()
        self._done.set()
        self._told: set[tuple[Path, str]] = set()

    def heard(self, event: Event, number: int, now: float) -> None:
        """A ``checkpoint`` event, line `number` of the events."""
        path = event.get("path")
        if isinstance(path, str) and (len(self._waiting) < _MOST_WAITING or Path(path) in self._waiting):
            self._waiting[Path(path)] = Waiting(Path(path), event, number, now + SETTLED_SECONDS)

    def look(self, now: float) -> list[Match]:
        """What is known to be wrong by now; begins to look at what is due."""
        if not self._done.is_set():
            return []
        matches = list(self._judge(now, final=False))
        self._hand_over([one for one in self._waiting.values() if now >= one.due])
        return matches

    def finish(self, now: float) -> list[Match]:
        """The run has ended: look at all that is left, for a few seconds at most."""
        if not self._done.wait(FINISH_SECONDS):
            return []
        matches = list(self._judge(now, final=True))
        self._hand_over(list(self._waiting.values()))
        if self._done.wait(FINISH_SECONDS):
            matches += self._judge(now, final=True)
        return matches

    def _hand_over(self, due: list[Waiting]) -> None:
        for one in due:
            del self._waiting[one.path]
        # What lies in a folder that waits itself is looked at with it.
        paths = {one.path for one in due} | set(self._waiting)
        self._looking = [one for one in due if paths.isdisjoint(one.path.parents)]
        if self._looking:
            self._done.clear()
            self._begin(self._check)

    def _check(self) -> None:
        try:
            for one in self._looking:
                one.found = [fault for fault in _faults(one.path) if fault.fails]
        finally:
            self._done.set()

    def _judge(self, now: float, *, final: bool) -> Iterator[Match]:
        """The faults that count; what was found for the first time is looked at again."""
        looked, self._looking = self._looking, []
        for one in looked:
            kinds = {(fault.path, fault.kind) for fault in one.found}
            for fault in one.found:
                key = (fault.path, fault.kind)
                if key not in self._told and (final or key in one.before):
                    self._told.add(key)
                    yield _match(fault, one)
            if kinds - one.before - self._told and not final and one.path not in self._waiting:
                due = now + SURE_SECONDS
                self._waiting[one.path] = Waiting(one.path, one.event, one.number, due, kinds)


def _faults(path: Path) -> list[Fault]:
    try:
        return check_checkpoint(path)
    except OSError:  # removed meanwhile, as trainers do with old checkpoints
        return []


def _match(fault: Fault, one: Waiting) -> Match:
    captures = {SEEN: "checkpoint", "path": str(fault.path), "fault": fault.what}
    return Match(fault.rule, line_of(one.event, one.number, evidence_of(captures)), captures)
