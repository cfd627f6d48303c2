"""Take stack snapshots of the ranks in a separate thread, so that the agent never waits for a snapshot."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from stallwatch_exporter.stacks.gathering import gather
from stallwatch_exporter.stacks.local_ranks import is_launching, local_ranks, sole_program
from stallwatch_exporter.stacks.processes import is_suspended
from stallwatch_rules.report.stacks import listing
from stallwatch_rules.stacks.folding import fold
from stallwatch_rules.stacks.records import RankAnswer, StallStacks
from stallwatch_rules.text.redact import redact

NO_RANK = (
    "no stacks can be read, because the command runs neither a rank (a process that has RANK set, trains with"
    " torch, or calls the probe) nor exactly one Python program"
)
NO_RANK_YET = "no stacks can be read, because the launcher has not started any ranks yet"
#: Seconds before a snapshot is abandoned. A process that is stuck in the kernel might never answer.
PATIENCE_SECONDS = 30.0


class LookResult(msgspec.Struct, frozen=True):
    """Result of one snapshot."""

    answers: list[RankAnswer]  #: answers of the ranks, or empty if this host has no ranks
    stacks: StallStacks | None = None
    suspended: bool = False  #: true if the command's control group is frozen or all processes are stopped
    unanswered: str = ""  #: reason why no rank could be queried


class Evidence:
    """Take stack snapshots: `look` starts a snapshot, and `take` returns its result when it is available."""

    def __init__(
        self,
        rings: Path | None,
        folder: Path | None,
        run: str,
        notice: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.command: int | None = None  #: ID of the process that `stallwatch run` started
        self._rings = rings
        self._folder = folder  # folder for the file with the stacks, or None if no file is written
        self._run = run
        self._notice = notice
        self._clock = clock
        self._number = 0  # number of the current or last snapshot
        self._began: float | None = None  # start time of the current snapshot, or None if it has ended
        self._results: dict[int, LookResult] = {}
        self._file = ""  # name of the file with the newest stacks of this quiet period

    @property
    def possible(self) -> bool:
        """Return whether there might be a process to query. This property does not search for processes."""
        return self._rings is not None or self.command is not None

    @property
    def under_way(self) -> bool:
        """Return whether a snapshot has begun but has no result yet."""
        return self._began is not None

    def look(self, *, progressed: bool = False) -> None:
        """Start a snapshot and return immediately. `progressed` is true if a rank has completed steps.

        A snapshot without a result after `PATIENCE_SECONDS` is abandoned.
        """
        self._number += 1
        self._began = self._clock()
        about = (self._number, progressed)
        looking = threading.Thread(target=self._look, args=about, name="stallwatch stacks", daemon=True)
        try:
            looking.start()
        except RuntimeError as error:  # no more threads are available
            self._notice(f"the stacks of the ranks cannot be read ({error})")
            self._results[self._number] = LookResult([])

    def take(self) -> LookResult | None:
        """Return the result of the current snapshot only once. Return ``None`` if there is no result yet."""
        found = self._results.pop(self._number, None)
        if found is None and self._began is not None and self._clock() - self._began >= PATIENCE_SECONDS:
            self._notice(f"the ranks did not respond within {PATIENCE_SECONDS:.0f} s")
            found = LookResult([])
        if found is not None:
            self._began = None
        return found

    def drop(self, *, reported: bool) -> None:
        """Discard the snapshots of a past quiet period. If `reported` is false, also delete their file."""
        self._number += 1
        self._began = None
        self._results.clear()
        if self._file and self._folder is not None and not reported:
            with contextlib.suppress(OSError):
                (self._folder / self._file).unlink()
        self._file = ""

    def _look(self, number: int, progressed: bool) -> None:
        found = LookResult([])
        try:
            began = time.monotonic()
            ranks = local_ranks(self._rings, self.command)
            # A program that has no steps might not be a training run, so query only ranks that have a probe.
            if not progressed:
                ranks = [rank for rank in ranks if rank.ring is not None and rank.ring.exists()]
            elif not ranks:
                ranks = sole_program(self.command)
            if ranks:
                answers = gather(ranks, interrupt=progressed)
                now = time.time()
                stacks = fold(answers, time=now, seconds=time.monotonic() - began)
                if self._folder is not None and number == self._number:
                    self._file = self._file or time.strftime("stacks-%Y%m%d-%H%M%S.txt", time.gmtime(now))
                    with contextlib.suppress(OSError):
                        text = redact(listing(stacks, answers, self._run))
                        (self._folder / self._file).write_text(text, "utf-8", "replace")
                        stacks.file, stacks.folder = self._file, str(self._folder)
                suspended = self.command is not None and is_suspended(self.command)
                found = LookResult(answers, stacks, suspended)
            elif self.command is not None:
                waits = not progressed and is_launching(self._rings, self.command)
                found = LookResult([], unanswered=NO_RANK_YET if waits else NO_RANK)
        except Exception as error:
            what = redact(f"{type(error).__name__}: {error}")
            self._notice(f"the stacks of the ranks could not be gathered ({what})")
        if number == self._number:
            self._results = {number: found}
