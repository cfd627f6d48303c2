"""Check the checkpoints that the ranks have written, while the agent continues to watch the run.

Checkpoints can be on a slow or unresponsive file system, so a separate thread checks them. If that thread
does not return, another thread checks the next checkpoints. A file that is being written looks broken.
Therefore, a fault counts only under two conditions. First, no process of the run has a file of the checkpoint
open for writing. Second, the file has not changed between two checks, or the run has ended. A fault is
withdrawn if a later check no longer finds it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stallwatch_exporter.checkpoints.writers import has_writer
from stallwatch_exporter.watching.probe_events import line_of
from stallwatch_rules.judgements.concerns import SEEN, evidence_of
from stallwatch_rules.locale import render
from stallwatch_rules.records import Match
from stallwatch_rules.text.controls import printable

if TYPE_CHECKING:
    from stallwatch_exporter.checkpoints.formats import Fault

SETTLED_SECONDS = 10.0  #: seconds to wait after a checkpoint was announced, or found open for writing
SURE_SECONDS = 30.0  #: seconds between the first check and the check that confirms a fault
RECHECK_SECONDS = 60.0  #: seconds between checks of a checkpoint known to be broken
FINISH_SECONDS = 2.5  #: seconds to wait at a run's end, first for a running check and then for the last check
PATIENCE_SECONDS = 120.0  #: Seconds before a check is abandoned. Another thread then checks the due paths.
_MOST_HUNG = 4  # Maximum number of checks that never return. Each check blocks a thread.
_MOST_WAITING = 1000

Event = Mapping[str, Any]
Begin = Callable[[Callable[[], None]], None]
Sizes = Mapping[Path, tuple[int, int]]  #: size and modification time of each file
Key = tuple[Path, str]  #: path of a fault, and its kind


class Waiting(msgspec.Struct):
    """Path to check, and the result of the last check."""

    path: Path
    event: Event
    number: int
    due: float
    found: list[Fault] = []
    sizes: Sizes = {}
    open: bool = False  #: true if a process has a file of the checkpoint open for writing
    settled: list[Fault] = []  #: faults that the last two checks found, in unchanged files without a writer

    def look(self, pids: Collection[int]) -> None:
        """Check the path for faults. If a trainer has removed the path, there are no faults."""
        from stallwatch_exporter.checkpoints.checking import check_checkpoint, listed  # rarely needed

        before, sizes_before = self.kinds, self.sizes
        self.found, self.sizes, self.open, self.settled = [], {}, False, []
        try:
            below = listed(self.path)
            files = [folder / name for folder, names in below.folders for name in names]
            self.open = has_writer(self.path, pids)
            self.sizes = {file: (stat.st_size, stat.st_mtime_ns) for file in files if (stat := file.stat())}
            self.found = [fault for fault in check_checkpoint(self.path, below) if fault.fails]
        except OSError:
            return
        if not self.open:
            known = [fault for fault in self.found if _key(fault) in before]
            self.settled = [
                fault
                for fault in known
                if _within(self.sizes, fault.path) == _within(sizes_before, fault.path)
            ]

    @property
    def kinds(self) -> set[Key]:
        return {_key(fault) for fault in self.found}


def _key(fault: Fault) -> Key:
    return fault.path, fault.kind


def _within(sizes: Sizes, path: Path) -> Sizes:
    return {file: size for file, size in sizes.items() if file == path or path in file.parents}


def in_background(job: Callable[[], None]) -> None:
    """Run a function in a thread that is never joined."""
    threading.Thread(target=job, name="stallwatch checkpoints", daemon=True).start()


class _Look:
    """A check of several paths by one thread."""

    def __init__(self, paths: list[Waiting], began: float) -> None:
        self.paths = paths
        self.began = began
        self.done = threading.Event()
        self.error: Exception | None = None

    def run(self, pids: Collection[int]) -> None:
        """Check each path. Store unexpected exceptions, which the thread would otherwise print."""
        for waiting in self.paths:
            try:
                waiting.look(pids)
            except Exception as error:
                self.error = error
        self.done.set()


class CheckpointWatch:
    """Check the paths that ranks announce. Call ``look`` about once a second to get faults."""

    def __init__(self, begin: Begin = in_background) -> None:
        self._begin = begin
        self._waiting: dict[Path, Waiting] = {}
        self._looks: list[_Look] = []  # checks in progress, oldest first
        self._known: dict[Key, str] = {}  # rules of the faults that `look` has returned
        self._repaired: list[str] = []
        self._error: Exception | None = None

    def take(self, event: Event, number: int, now: float) -> None:
        """Add the path of a ``checkpoint`` event, which is line `number` of the events."""
        path = event.get("path")
        if isinstance(path, str) and (len(self._waiting) < _MOST_WAITING or Path(path) in self._waiting):
            fresh = Waiting(Path(path), event, number, now + SETTLED_SECONDS)
            before = self._waiting.get(fresh.path)
            if before is not None:  # rewritten: an earlier fault remains if the next check finds it again
                fresh.found, fresh.sizes = before.found, before.sizes
            self._waiting[fresh.path] = fresh

    def look(self, now: float, pids: Collection[int] = ()) -> list[Match]:
        """Start the checks that are due. Return the new confirmed faults.

        `pids` contains the IDs of the processes that can write the files.
        """
        matches = [match for waiting in self._looked() for match in self._judge(waiting, now)]
        hung = [look for look in self._looks if now - look.began >= PATIENCE_SECONDS]
        if len(hung) == len(self._looks) and len(hung) < _MOST_HUNG:
            self._hand_over([each for each in self._waiting.values() if now >= each.due], now, pids)
        return matches

    def finish(self, now: float) -> list[Match]:
        """After the run and its writers have ended, check all remaining paths for at most a few seconds."""
        self._wait()
        for waiting in self._looked():
            self._waiting.setdefault(waiting.path, waiting)
        self._hand_over(list(self._waiting.values()), now, ())
        self._wait()
        return [match for waiting in self._looked() for match in self._faults(waiting, waiting.found)]

    def take_repaired(self) -> list[str]:
        """Return the rules of the faults that have disappeared since the last call."""
        repaired, self._repaired = self._repaired, []
        return repaired

    def raise_error(self) -> None:
        """Raise the last internal error of a check only once, so that the caller can report the error."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _wait(self) -> None:
        """Wait only for the newest check, because earlier checks have already exceeded their time limit."""
        for look in self._looks[-1:]:
            look.done.wait(FINISH_SECONDS)

    def _hand_over(self, due: list[Waiting], now: float, pids: Collection[int]) -> None:
        for waiting in due:
            del self._waiting[waiting.path]
        # The content of a folder that waits for a check is checked together with the folder.
        folders = {waiting.path: waiting for waiting in (*due, *self._waiting.values())}
        alone = []
        for waiting in due:
            above = next((folders[path] for path in waiting.path.parents if path in folders), None)
            if above is None:
                alone.append(waiting)
            else:
                above.found = [*above.found, *waiting.found]
                above.sizes = {**waiting.sizes, **above.sizes}
        if alone:
            self._looks.append(look := _Look(alone, now))
            self._begin(functools.partial(look.run, pids))

    def _looked(self) -> Iterator[Waiting]:
        """Yield the paths of the finished checks and remove these checks."""
        for look in [look for look in self._looks if look.done.is_set()]:
            self._looks.remove(look)
            self._error = look.error or self._error
            yield from look.paths

    def _judge(self, waiting: Waiting, now: float) -> list[Match]:
        """Return the confirmed faults of a path, and schedule the next check of the path."""
        matches = self._faults(waiting, waiting.settled)
        if not waiting.open and not waiting.found:
            return matches
        unsure = waiting.kinds - self._known.keys()
        waiting.due = now + (SETTLED_SECONDS if waiting.open else SURE_SECONDS if unsure else RECHECK_SECONDS)
        again = self._waiting.setdefault(waiting.path, waiting)
        if again is not waiting:  # the rank announced the path again during the check
            again.found, again.sizes = [*again.found, *waiting.found], waiting.sizes
        return matches

    def _faults(self, waiting: Waiting, sure: Collection[Fault]) -> list[Match]:
        """Return the new confirmed faults of a path, and record the rules of faults that disappeared."""
        if waiting.open:
            return []
        below = {key for key in self._known if key[0] == waiting.path or waiting.path in key[0].parents}
        gone = {key: self._known.pop(key) for key in below - waiting.kinds}
        self._repaired += sorted(
            set(gone.values()) - set(self._known.values()) - {each.rule for each in sure}
        )
        fresh = [fault for fault in sure if _key(fault) not in self._known]
        self._known |= {_key(fault): fault.rule for fault in fresh}
        return [_match(fault, waiting) for fault in fresh]


def _match(fault: Fault, waiting: Waiting) -> Match:
    captures = {SEEN: "checkpoint", "path": printable(str(fault.path)), "fault": render(fault.what)}
    return Match(fault.rule, line_of(waiting.event, waiting.number, evidence_of(captures)), captures)
