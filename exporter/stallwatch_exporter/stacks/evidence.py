"""The stacks of a stall, gathered by a thread of their own: raising the incident waits for nothing here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stallwatch_exporter.stacks.gathering import gather, keep
from stallwatch_exporter.stacks.localranks import is_launching, local_ranks
from stallwatch_rules.stacks.folding import fold
from stallwatch_rules.stacks.listing import listing
from stallwatch_rules.stacks.records import StallStacks
from stallwatch_rules.text.redact import redact

NO_RANK = (
    "nobody can be asked where the command stands: no process of it that lives is a rank"
    " (has a RANK, trains with torch, or calls the probe), and it is not one Python program alone"
)
NO_RANK_YET = "no rank can be asked where it stands: the launcher has not started any yet"
PATIENCE_SECONDS = 30.0  #: reading the command line of a process that is stuck in the kernel may never end


@dataclass(frozen=True)
class Found:
    """What came of one stall's question."""

    stacks: StallStacks | None  #: nothing where no rank was found on this host


class Evidence:
    """``gather`` when a stall was raised, ``take`` at every look after it."""

    def __init__(
        self,
        rings: Path | None,
        folder: Path | None,
        run: str,
        notice: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.command: int | None = None  #: the process that `stallwatch run` started
        self._rings = rings
        self._folder = folder  # None: nothing is kept
        self._run = run
        self._notice = notice
        self._clock = clock
        self._said_why = False  # that there is nobody to ask
        self._found: dict[int, Found] = {}  # by episode
        self._asked: dict[int, float] = {}  # when, by episode that waits for its answer

    def gather(self, episode: int, *, progressed: bool = False) -> None:
        """Begin to ask about this stall; returns at once. `progressed`: some rank has trained."""
        if self._rings is None and self.command is None:
            self._found[episode] = Found(None)
            return
        self._asked[episode] = self._clock()
        told = (episode, progressed)
        asking = threading.Thread(target=self._gather, args=told, name="stallwatch stacks", daemon=True)
        try:
            asking.start()
        except RuntimeError as error:  # the system gives no more threads
            self._notice(f"the ranks cannot be asked where they are ({error})")
            self._found[episode] = Found(None)

    def take(self, episode: int) -> Found | None:
        """What was found of this stall, once; what was found of others is of no use any more.

        Nothing, where the asking itself hangs: what is to be done about the stall must not wait for that.
        """
        found = self._found.pop(episode, None)
        asked = self._asked.get(episode)
        if asked is not None and found is None and self._clock() - asked >= PATIENCE_SECONDS:
            self._notice(f"the ranks did not tell within {PATIENCE_SECONDS:.0f} s where they are")
            found = Found(None)
        if found is not None:
            self._asked.pop(episode, None)
        for other in list(self._found):
            if other < episode:
                self._found.pop(other, None)
        for other in list(self._asked):
            if other < episode:
                self._asked.pop(other, None)
        return found

    def _gather(self, episode: int, progressed: bool) -> None:
        stacks: StallStacks | None = None
        try:
            began = time.monotonic()
            ranks = local_ranks(self._rings, self.command)
            if not ranks and self.command is not None and not self._said_why:
                self._said_why = True
                waits = not progressed and is_launching(self._rings, self.command)
                self._notice(NO_RANK_YET if waits else NO_RANK)
            if ranks:
                asked = gather(ranks)
                now = time.time()
                stacks = fold(asked, time=now, seconds=time.monotonic() - began)
                if self._folder is not None:
                    stacks.file = keep(self._folder, now, redact(listing(stacks, asked, self._run)))
        except Exception as error:
            what = redact(f"{type(error).__name__}: {error}")
            self._notice(f"the stacks of the ranks could not be gathered ({what})")
        if episode in self._asked:  # else it was given up
            self._found[episode] = Found(stacks)
