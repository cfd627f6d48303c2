"""Checkpoints that a rank told of are looked at once they are written, here and never in the rank.

They may lie on a file system that is slow or hangs, so a thread beside the watching looks at them, and
another one at the next ones if it does not come back. A file that is written piece by piece looks broken
meanwhile: only what was found twice, or at the end, is told.
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
PATIENCE_SECONDS = 120.0  #: a look that takes longer is left to itself; what is due next gets another
_MOST_HUNG = 4  # looks that never come back, each with a thread
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


class _Look:
    """One look of one thread at some paths."""

    def __init__(self, paths: list[Waiting], began: float) -> None:
        self.paths = paths
        self.began = began
        self.done = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        """What is wrong with each. An error of ours is kept: a thread would print it with its traceback."""
        for one in self.paths:
            try:
                one.found = [fault for fault in _faults(one.path) if fault.fails]
            except Exception as error:
                self.error = error
        self.done.set()


class CheckpointWatch:
    """Tell it of paths, and ask it about once a second what is wrong with them."""

    def __init__(self, begin: Begin = in_background) -> None:
        self._begin = begin
        self._waiting: dict[Path, Waiting] = {}
        self._looks: list[_Look] = []  # under way, oldest first
        self._told: set[tuple[Path, str]] = set()
        self._error: Exception | None = None

    def heard(self, event: Event, number: int, now: float) -> None:
        """A ``checkpoint`` event, line `number` of the events."""
        path = event.get("path")
        if isinstance(path, str) and (len(self._waiting) < _MOST_WAITING or Path(path) in self._waiting):
            before = self._waiting.get(Path(path))
            # Written anew: what was wrong with it is wrong still if it is found again.
            found = before.before if before is not None else set()
            self._waiting[Path(path)] = Waiting(Path(path), event, number, now + SETTLED_SECONDS, found)

    def look(self, now: float) -> list[Match]:
        """What is known to be wrong by now; begins to look at what is due."""
        matches = self._judge(now, final=False)
        hung = [look for look in self._looks if now - look.began >= PATIENCE_SECONDS]
        if len(hung) == len(self._looks) and len(hung) < _MOST_HUNG:
            self._hand_over([one for one in self._waiting.values() if now >= one.due], now)
        return matches

    def finish(self, now: float) -> list[Match]:
        """The run has ended: look at all that is left, for a few seconds at most."""
        self._wait()
        matches = self._judge(now, final=True)
        self._hand_over(list(self._waiting.values()), now)
        self._wait()
        return matches + self._judge(now, final=True)

    def raise_error(self) -> None:
        """Raise what went wrong in a look, once, for the caller to tell; all else was looked at."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _wait(self) -> None:
        """For the newest look: older ones have had their time."""
        for look in self._looks[-1:]:
            look.done.wait(FINISH_SECONDS)

    def _hand_over(self, due: list[Waiting], now: float) -> None:
        for one in due:
            del self._waiting[one.path]
        # What lies in a folder that waits itself is looked at with it.
        folders = {one.path: one for one in (*due, *self._waiting.values())}
        alone = []
        for one in due:
            above = next((folders[path] for path in one.path.parents if path in folders), None)
            if above is None:
                alone.append(one)
            else:
                above.before |= one.before
        if alone:
            look = _Look(alone, now)
            self._looks.append(look)
            self._begin(look.run)

    def _judge(self, now: float, *, final: bool) -> list[Match]:
        """The faults that count; what was found for the first time is looked at again."""
        matches: list[Match] = []
        for look in [look for look in self._looks if look.done.is_set()]:
            self._looks.remove(look)
            self._error = look.error or self._error
            for one in look.paths:
                matches += self._faults_of(one, now, final=final)
        return matches

    def _faults_of(self, one: Waiting, now: float, *, final: bool) -> Iterator[Match]:
        kinds = {(fault.path, fault.kind) for fault in one.found}
        for fault in one.found:
            key = (fault.path, fault.kind)
            if key not in self._told and (final or key in one.before):
                self._told.add(key)
                yield _match(fault, one)
        fresh = kinds - one.before - self._told
        if fresh and not final:
            again = self._waiting.get(one.path)
            if again is None:
                due = now + SURE_SECONDS
                self._waiting[one.path] = Waiting(one.path, one.event, one.number, due, kinds)
            else:  # told of once more meanwhile
                again.before |= kinds


def _faults(path: Path) -> list[Fault]:
    try:
        return check_checkpoint(path)
    except OSError:  # removed meanwhile, as trainers do with old checkpoints
        return []


def _match(fault: Fault, one: Waiting) -> Match:
    captures = {SEEN: "checkpoint", "path": str(fault.path), "fault": fault.what}
    return Match(fault.rule, line_of(one.event, one.number, evidence_of(captures)), captures)
