"""Deliver one chat's messages from the outbox and retry failed deliveries."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stallwatch_alerts.delivery.grouping import expiry_notice, grouped_message, merged
from stallwatch_alerts.delivery.outbox import Batch, Claimed
from stallwatch_alerts.delivery.pacing import Limit, is_expired, limits_of, wait_after
from stallwatch_alerts.masking import mask_url
from stallwatch_alerts.notice import Channel, Notice, fingerprint
from stallwatch_exporter import steady

if TYPE_CHECKING:
    from stallwatch_alerts.delivery.outbox import Outbox


def retry_after(error: Exception) -> float | None:
    """Return how many seconds the chat asked Stallwatch to wait, or `None` if the chat did not ask."""
    seconds = getattr(error, "retry_after", None)
    return float(seconds) if isinstance(seconds, (int, float)) and seconds >= 0 else None


# Minimum age of a message, in seconds, before other databases are queried. Another process cannot have sent a
# more recent message, and each query takes time.
_LATE_SECONDS = 60.0
# Minimum number of seconds between two edits, because most of the rate limit is reserved for new messages.
_EDIT_SECONDS = 5.0
_MOST_EDITS = 100
_STUCK_SECONDS = 10.0  # seconds of failed access that indicate a fault; no process holds a lock that long
_LOOK_SECONDS = 1.0  # seconds between two checks for messages of other processes and for due retries


class Sender:
    """Delivers the messages of one chat from `outbox` until the sender is closed.

    `report` receives descriptions of failures, which contain no secrets. `count` receives ``sent``,
    ``failed``, or ``given-up`` for each attempt. `delivered` receives the chat and the keys of the delivered
    messages. `acknowledged` returns whether a user acknowledged an incident. `settled` returns whether
    another process has already sent the chat a deferred or refused message. `turn` returns whether messages
    to the chat can be sent immediately.
    """

    def __init__(
        self,
        url: str,
        outbox: Outbox,
        connect: Callable[[str], Channel],
        *,
        language: str = "en",
        report: Callable[[str], None] = lambda _: None,
        count: Callable[[str], None] = lambda _: None,
        delivered: Callable[[str, Sequence[str]], None] = lambda _channel, _keys: None,
        acknowledged: Callable[[str], bool] = lambda _: False,
        settled: Callable[[str, Sequence[str]], bool] = lambda _channel, _keys: False,
        turn: Callable[[str], bool] = lambda _channel: True,
        clock: Callable[[], float] = steady.now,
        limits: Sequence[Limit] | None = None,
        start: bool = True,
    ) -> None:
        self.name = mask_url(url)
        self.looked_at = clock()  #: time of the thread's last iteration
        self.sent = 0  #: number of delivered messages; each message of a group counts
        self.given_up = 0
        self._url = url
        self.outbox = outbox
        self._connect = connect
        self._language = language
        self._report = report
        self._report_count = count
        self._delivered = delivered
        self._acknowledged = acknowledged
        self._settled = settled
        self._turn = turn
        self._clock = clock
        self._limits = limits_of(url) if limits is None else limits
        self._channel: Channel | None = None
        self._refusing = False
        self._troubled_at: float | None = None
        self._edits: dict[str, Notice] = {}  # the newest edit of each incident's message, by incident ID
        self._edited_at = 0.0
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._fingerprint = ""
        self._thread = threading.Thread(target=self._run, name=f"stallwatch-sender {self.name}", daemon=True)
        if start:
            self._thread.start()

    def wake(self) -> None:
        """Make the thread read the outbox immediately instead of after the next interval."""
        self._wake.set()

    def amend(self, notice: Notice) -> None:
        """Schedule an edit of the message about an open incident.

        The edit is dropped if this sender did not send the message, or if the chat does not support edits.
        """
        self._edits[str(notice.facts.get("id"))] = notice
        while len(self._edits) > _MOST_EDITS:
            self._edits.pop(next(iter(self._edits)))
        self._wake.set()

    def close(self, timeout: float) -> None:
        """Finish the current attempt and stop the thread. The next process sends the remaining messages."""
        self._closing.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        """True while the sender's thread is running."""
        return self._thread.is_alive()

    def is_stuck(self, now: float) -> bool:
        """Return whether reading or writing the outbox has failed for at least ten seconds."""
        return self._troubled_at is not None and now - self._troubled_at >= _STUCK_SECONDS

    def look(self) -> bool:
        """Try to send the next due messages. Return False if no message is due."""
        channel = self._fingerprint = self._fingerprint or fingerprint(self._url)
        if not self._turn(channel):
            return False
        batch = self.outbox.claim_or_read(channel, self._clock(), self._limits)
        if batch is None:
            return False
        if batch.escalates and self._is_acknowledged(batch.escalates):
            self.outbox.withdraw(batch, "acknowledged")
            return True
        if settled := self._settled_of(batch):
            self.outbox.withdraw(replace(batch, messages=settled), "sent by another process")
            left = tuple(message for message in batch.messages if message not in settled)
            if not left:
                return True
            batch = replace(batch, messages=left)
        self._try(batch, channel)
        return True

    def _run(self) -> None:
        self._open()
        while not self._closing.is_set():
            self._wake.clear()
            try:
                while not self._closing.is_set() and self.look():
                    pass
                self._edit()
                self._troubled_at = None
            except Exception as error:  # for example, because a database is temporarily down
                if self._troubled_at is None:
                    self._warn(
                        f"{self.name}: the outbox cannot be read ({type(error).__name__}); trying again"
                    )
                    self._troubled_at = self._clock()
            self.looked_at = self._clock()
            self._wake.wait(_LOOK_SECONDS)

    def _edit(self) -> None:
        """Send one scheduled edit.

        A refused edit is dropped, because the last message about the incident contains the same
        information.
        """
        channel = self._channel
        if channel is None or time.monotonic() - self._edited_at < _EDIT_SECONDS:
            return
        name = next((name for name in list(self._edits) if channel.has_message(name)), None)
        if name is None or not self.outbox.take_turn(self._fingerprint, self._clock(), self._limits):
            return
        self._edited_at = time.monotonic()
        with contextlib.suppress(Exception):
            channel.edit(self._edits.pop(name))

    def _open(self) -> None:
        try:
            self._channel = self._connect(self._url)
        except Exception as error:  # messages stay stored until the user fixes the URL
            self._warn(f"{self.name} cannot be used: {error}")
            self._refusing = True  # avoids a report for every message

    def _try(self, batch: Batch, channel: str) -> None:
        try:
            if self._channel is None:
                self._channel = self._connect(self._url)
            self._channel.send(self._notice(batch))
        except Exception as error:
            self._refused(batch, channel, error)
            return
        self._refusing = False
        for group in batch.groups:
            if group.worst.facts.get("status") == "resolved":
                self._edits.pop(str(group.worst.facts.get("id")), None)
        self.sent += sum(group.count for group in batch.groups)
        self._count("sent")
        with contextlib.suppress(Exception):
            self._delivered(channel, batch.keys)
        self.outbox.sent(batch, channel, self._clock())

    def _notice(self, batch: Batch) -> Notice:
        if not batch.messages:
            return expiry_notice(batch.expired, self._language)
        now = self._clock()
        late = 0.0 if batch.escalates else now - batch.created_at
        shown = steady.wall(now)
        return grouped_message(
            merged(batch.groups), self._language, late=late, expired=batch.expired, now=shown
        )

    def _refused(self, batch: Batch, channel: str, error: Exception) -> None:
        now = self._clock()
        reason = str(error) or type(error).__name__
        if batch.messages and is_expired(batch.created_at, batch.attempts + 1, now):
            lost = self.outbox.give_up(batch, channel, reason)
            self.given_up += lost
            self._count("given-up")
            title = batch.groups[0].worst.message.title
            self._warn(
                f"{self.name}: gave up on message {title!r}{f' and {lost - 1} more' if lost > 1 else ''}: "
                f"{reason}"
            )
            return
        pause = retry_after(error)
        again = now + wait_after(batch.attempts + 1, random.random(), pause)
        self.outbox.refused(batch, channel, reason, now, again, pause=pause is not None)
        self._count("failed")
        if not self._refusing:
            self._warn(f"{self.name} did not accept a message; trying again: {reason}")
        self._refusing = True

    def _is_acknowledged(self, incident: str) -> bool:
        try:
            return self._acknowledged(incident)
        except Exception:  # escalate if the acknowledgement cannot be read
            return False

    def _settled_of(self, batch: Batch) -> tuple[Claimed, ...]:
        """Return the messages of the batch that another process has already sent.

        Only deferred messages and messages that have waited for a long time are checked.
        """
        late = self._clock() - batch.created_at > _LATE_SECONDS
        found: list[Claimed] = []
        # If a query fails, stop querying and send the remaining messages, although a chat might receive a
        # message twice.
        with contextlib.suppress(Exception):
            for message in batch.messages:
                may_be = (late or message.deferred) and message.keys
                if may_be and self._settled(self._fingerprint, message.keys):
                    found.append(message)
        return tuple(found)

    def _count(self, what: str) -> None:
        with contextlib.suppress(Exception):
            self._report_count(what)

    def _warn(self, text: str) -> None:
        with contextlib.suppress(Exception):  # a failing report must not prevent another attempt
            self._report(text)
