"""Check checkpoints that ranks announce, once they are written, in the agent and never in the rank.

They may be on a slow or hanging file system, so a separate thread looks at them, and another at the next
checkpoints if it does not return. A file that is being written looks broken: a fault counts only if no
process of the run has a file of the checkpoint open for writing, and if the file was the same at two looks in
a row, or the run has ended. A fault is withdrawn when a later look no longer finds it.
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

SETTLED_SECONDS = 10.0  #: after a checkpoint was announced, or found open for writing
SURE_SECONDS = 30.0  #: between the first look and the one that counts
MEND_SECONDS = 60.0  #: between looks at a checkpoint known to be broken
FINISH_SECONDS = 2.5  #: how long the end of a run waits for a look in progress, and for the last one
PATIENCE_SECONDS = 120.0  #: a look that takes longer is abandoned; the next due paths get another
_MOST_HUNG = 4  # looks that never return, each with a thread
_MOST_WAITING = 1000

Event = Mapping[str, Any]
Begin = Callable[[Callable[[], None]], None]
Sizes = Mapping[Path, tuple[int, int]]  #: size and time of the last change of each file
Key = tuple[Path, str]  #: the place of a fault, and its kind


class Waiting(msgspec.Struct):
    """A path to check, and the result of the last look at it, or at the same path before."""

    path: Path
    event: Event
    number: int
    due: float
    found: list[Fault] = []
    sizes: Sizes = {}
    open: bool = False  #: for writing
    settled: list[Fault] = []  #: same as at the previous look, in the same files, which no process writes

    def look(self, pids: Collection[int]) -> None:
        """Find what is wrong with it. A path that was removed, as trainers do, has no faults."""
        from stallwatch_exporter.checkpoints.checking import check_checkpoint, listed  # few runs announce one

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
                one for one in known if _within(self.sizes, one.path) == _within(sizes_before, one.path)
            ]

    @property
    def kinds(self) -> set[Key]:
        """Kinds of fault found by the last look."""
        return {_key(fault) for fault in self.found}


def _key(fault: Fault) -> Key:
    return fault.path, fault.kind


def _within(sizes: Sizes, path: Path) -> Sizes:
    return {file: size for file, size in sizes.items() if file == path or path in file.parents}


def in_background(job: Callable[[], None]) -> None:
    """Run it in a thread that is never joined."""
    threading.Thread(target=job, name="stallwatch checkpoints", daemon=True).start()


class _Look:
    """One look of one thread at some paths."""

    def __init__(self, paths: list[Waiting], began: float) -> None:
        self.paths = paths
        self.began = began
        self.done = threading.Event()
        self.error: Exception | None = None

    def run(self, pids: Collection[int]) -> None:
        """Look at each path. Keep an internal error, as a thread would print it with its traceback."""
        for waiting in self.paths:
            try:
                waiting.look(pids)
            except Exception as error:
                self.error = error
        self.done.set()


class CheckpointWatch:
    """Check the paths that ranks announce; call ``look`` about once a second for what is wrong with them."""

    def __init__(self, begin: Begin = in_background) -> None:
        self._begin = begin
        self._waiting: dict[Path, Waiting] = {}
        self._looks: list[_Look] = []  # in progress, oldest first
        self._known: dict[Key, str] = {}  # faults that were returned, with their rules
        self._mended: list[str] = []
        self._error: Exception | None = None

    def take(self, event: Event, number: int, now: float) -> None:
        """Take a ``checkpoint`` event, line `number` of the events."""
        path = event.get("path")
        if isinstance(path, str) and (len(self._waiting) < _MOST_WAITING or Path(path) in self._waiting):
            fresh = Waiting(Path(path), event, number, now + SETTLED_SECONDS)
            before = self._waiting.get(fresh.path)
            if before is not None:  # rewritten: an earlier fault is still there if it is found again
                fresh.found, fresh.sizes = before.found, before.sizes
            self._waiting[fresh.path] = fresh

    def look(self, now: float, pids: Collection[int] = ()) -> list[Match]:
        """Return the faults known now, and start checking what is due. `pids` may be writing it."""
        matches = [match for one in self._looked() for match in self._judge(one, now)]
        hung = [look for look in self._looks if now - look.began >= PATIENCE_SECONDS]
        if len(hung) == len(self._looks) and len(hung) < _MOST_HUNG:
            self._hand_over([one for one in self._waiting.values() if now >= one.due], now, pids)
        return matches

    def finish(self, now: float) -> list[Match]:
        """After the run and its writers have ended, check all that is left, for a few seconds."""
        self._wait()
        for waiting in self._looked():
            self._waiting.setdefault(waiting.path, waiting)
        self._hand_over(list(self._waiting.values()), now, ())
        self._wait()
        return [match for waiting in self._looked() for match in self._faults(waiting, waiting.found)]

    def take_mended(self) -> list[str]:
        """Return the rules whose faults are gone, each once."""
        mended, self._mended = self._mended, []
        return mended

    def raise_error(self) -> None:
        """Raise an error of a look, once, for the caller to report; everything else was checked."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _wait(self) -> None:
        """Wait for the newest look: older ones have had their time."""
        for look in self._looks[-1:]:
            look.done.wait(FINISH_SECONDS)

    def _hand_over(self, due: list[Waiting], now: float, pids: Collection[int]) -> None:
        for waiting in due:
            del self._waiting[waiting.path]
        # The content of a waiting folder is checked with it.
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
        """Return the paths of the looks that have finished."""
        for look in [look for look in self._looks if look.done.is_set()]:
            self._looks.remove(look)
            self._error = look.error or self._error
            yield from look.paths

    def _judge(self, one: Waiting, now: float) -> list[Match]:
        """Return the faults that count now, and when to look again."""
        matches = self._faults(one, one.settled)
        if not one.open and not one.found:
            return matches
        unsure = one.kinds - self._known.keys()
        one.due = now + (SETTLED_SECONDS if one.open else SURE_SECONDS if unsure else MEND_SECONDS)
        again = self._waiting.setdefault(one.path, one)
        if again is not one:  # announced again meanwhile
            again.found, again.sizes = [*again.found, *one.found], one.sizes
        return matches

    def _faults(self, one: Waiting, sure: Collection[Fault]) -> list[Match]:
        """Return the certain faults that are new; note those that are gone."""
        if one.open:
            return []
        below = {key for key in self._known if key[0] == one.path or one.path in key[0].parents}
        gone = {key: self._known.pop(key) for key in below - one.kinds}
        self._mended += sorted(set(gone.values()) - set(self._known.values()) - {each.rule for each in sure})
        fresh = [fault for fault in sure if _key(fault) not in self._known]
        self._known |= {_key(fault): fault.rule for fault in fresh}
        return [_match(fault, one) for fault in fresh]


def _match(fault: Fault, one: Waiting) -> Match:
    captures = {SEEN: "checkpoint", "path": printable(str(fault.path)), "fault": render(fault.what)}
    return Match(fault.rule, line_of(one.event, one.number, evidence_of(captures)), captures)
