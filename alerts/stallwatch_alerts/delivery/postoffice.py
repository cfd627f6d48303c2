"""The agent's way to the chats: every message is on this host's disk before it leaves."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stallwatch_alerts.channels.notice import Notice
from stallwatch_alerts.delivery.memoryoffice import MemoryOffice
from stallwatch_alerts.delivery.planning import Letter, Planner
from stallwatch_alerts.delivery.sender import Sender
from stallwatch_alerts.delivery.ways import Ways
from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.worker import Worker
from stallwatch_exporter import steady

if TYPE_CHECKING:
    from stallwatch_alerts.delivery.outbox import Outbox

_CAPACITY = 5000  # letters that are not on disk yet; some 20 MB
_AT_ONCE = 200
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class _Ring:
    """There are letters."""


class PostOffice:
    """Takes letters at once; a thread stores them, and one thread for each chat delivers.

    Where the disk takes nothing, a letter is delivered from memory. Messages that earlier agents left behind
    are delivered, too, and messages that we leave behind by the next one, or by ``stallwatch relay``.
    """

    def __init__(
        self,
        settings: AlertSettings,
        open_spool: Callable[[], Outbox],
        planner: Planner,
        ways: Ways,
    ) -> None:
        self._settings = settings
        self._open_spool = open_spool
        self._planner = planner
        self._ways = ways
        self._clock = ways.clock
        self._letters: deque[Letter] = deque()
        self._edits: deque[Notice] = deque(maxlen=_AT_ONCE)
        self._lost = 0
        self._outbox: Outbox | None = None
        self._senders: list[Sender] = []
        self._memory: MemoryOffice | None = None
        self._troubled = False
        self._worker: Worker[_Ring] = Worker("stallwatch-spool", self._store, capacity=1, begin=self._open)

    def put(self, letter: Letter) -> None:
        """Take it; never waits."""
        if len(self._letters) >= _CAPACITY:
            self._lost += 1
            return
        self._letters.append(letter)
        self._worker.put(_Ring())

    def amend(self, notice: Notice) -> None:
        """Bring the message of an open incident up to date where a chat can; never waits."""
        self._edits.append(notice)
        self._worker.put(_Ring())

    @property
    def sent(self) -> int:
        """Messages delivered, over all URLs."""
        from_memory = self._memory.sent if self._memory is not None else 0
        return from_memory + sum(sender.sent for sender in self._senders)

    @property
    def failed(self) -> int:
        """Messages that will not be delivered any more."""
        from_memory = self._memory.failed if self._memory is not None else 0
        return self._lost + from_memory + sum(sender.given_up for sender in self._senders)

    def kept(self) -> int:
        """Messages that wait on disk, and may leave."""
        with contextlib.suppress(Exception):
            if self._outbox is not None:
                return self._outbox.waiting(self._planner.channels, self._clock())
        return 0

    def close(self, timeout: float) -> bool:
        """Deliver what is there within `timeout` seconds, and whether that was all; the rest is on disk."""
        deadline = time.monotonic() + timeout
        self._worker.close(timeout)
        self._lost += len(self._letters)
        self._letters.clear()
        if self._memory is not None:
            self._memory.close(max(0.0, deadline - time.monotonic()))
        while self.kept() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        for sender in self._senders:
            sender.close(max(0.2, deadline - time.monotonic()))
        return not self.failed and not self.kept()

    def _open(self) -> None:
        """The spool and the senders; again with the next letter where it does not work."""
        outbox = self._open_spool()
        with contextlib.suppress(Exception):
            outbox.prune(self._clock(), self._settings.keep_days)
        self._outbox = outbox
        self._senders = [
            Sender(
                url,
                outbox,
                self._ways.connect,
                language=self._settings.language,
                report=self._ways.report,
                delivered=self._ways.delivered,
                acknowledged=self._planner.is_acknowledged,
                settled=self._ways.settled,
                clock=self._clock,
            )
            for url in self._settings.all_urls
        ]

    def _store(self, _ring: _Ring, _give_up: threading.Event) -> None:
        while self._letters:
            some = [self._letters.popleft() for _ in range(min(_AT_ONCE, len(self._letters)))]
            try:
                if self._outbox is None:
                    self._open()
                self._keep(some)
                self._troubled = False
            except Exception as error:
                self._without_disk(some, error)
        while self._edits:
            notice = self._edits.popleft()
            for sender in self._senders:
                sender.amend(notice)

    def _keep(self, letters: Sequence[Letter]) -> None:
        assert self._outbox is not None
        now, outbox = self._clock(), self._outbox
        over = [letter.incident.id for letter in letters if letter.incident.is_settled]
        at = steady.wall(now)
        if outbox.put(lambda told: self._planner.drafts(letters, told, outbox, at), now, over):
            for sender in self._senders:
                sender.wake()

    def _without_disk(self, letters: Sequence[Letter], error: Exception) -> None:
        if not self._troubled:
            self._troubled = True
            with contextlib.suppress(Exception):
                self._ways.report(
                    f"messages cannot be kept on disk ({type(error).__name__}); they are sent from memory"
                )
        if self._memory is None:
            self._memory = MemoryOffice(self._settings, self._planner, self._ways)
        for letter in letters:
            self._memory.put(letter)
