"""Write incidents to the store in the background."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from stallwatch_alerts.masking import error_line
from stallwatch_alerts.storage.cluster import is_cluster_engine
from stallwatch_alerts.worker import Worker
from stallwatch_exporter.incident import Incident

if TYPE_CHECKING:
    from stallwatch_alerts.delivery.outbox import Outbox
    from stallwatch_alerts.store import IncidentStore


# Maximum number of changes queued while the database is down. The run folder also contains the changes.
_CAPACITY = 20_000
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0


class _Notified(msgspec.Struct, frozen=True):
    """A record that a chat accepted a message."""

    channel: str
    keys: tuple[str, ...]
    at: float


class StoreSink:
    """Writes every change to an incident in a separate thread, so that a slow disk does not delay the agent.

    The thread opens the store on the first incident, because most runs have no incident and the import of
    SQLAlchemy takes a second. It then deletes incidents that ended more than `keep_days` ago. `report`
    receives the first failure, without the secrets in the database's `url`.
    """

    def __init__(
        self,
        open_store: Callable[[], IncidentStore],
        report: Callable[[str], None] = lambda _: None,
        url: str = "",
        keep_days: float | None = None,
    ) -> None:
        self._open_store = open_store
        self._store: IncidentStore | None = None
        self._outbox: Outbox | None = None
        self._report = report
        self._url = url
        self.is_shared = is_cluster_engine(url)  #: True if all agents of a run write to this database
        self._keep_days = keep_days
        self._complained = False
        self._worker: Worker[Incident | _Notified] = Worker(
            "stallwatch-incidents", self._write, capacity=_CAPACITY
        )

    def __call__(self, incident: Incident) -> None:
        """Queue a copy of the incident's current state, which the thread writes to the store."""
        self._worker.put(msgspec.structs.replace(incident))

    def note_notified(self, channel: str, keys: Sequence[str]) -> None:
        """Queue a record that the chat was notified, so that no relay repeats the notification.

        `channel` is the fingerprint of the chat.
        """
        if keys:
            self._worker.put(_Notified(channel, tuple(keys), time.time()))

    @property
    def failed(self) -> int:
        """The number of changes that could not be written."""
        return self._worker.failed + self._worker.dropped

    def close(self, timeout: float) -> bool:
        """Write the queued changes within `timeout` seconds. Return whether all changes were written."""
        done = self._worker.close(timeout)
        if done and self._store is not None:
            self._store.close()
        return done and self.failed == 0

    def _write(self, item: Incident | _Notified, give_up: threading.Event) -> None:
        wait = _FIRST_WAIT
        while True:
            try:
                self._keep(item)
                return
            except Exception as error:
                self._warn(error)
                if not self._may_pass(error) or give_up.wait(wait):
                    raise
                wait = min(_LONGEST_WAIT, 2 * wait)

    def _keep(self, item: Incident | _Notified) -> None:
        if self._store is None:
            self._store = self._open_store()
            self._prune(self._store)
        if isinstance(item, _Notified):
            if self._outbox is None:
                from stallwatch_alerts.delivery.outbox import Outbox

                self._outbox = Outbox(self._store.engine)
            self._outbox.note(item.channel, item.keys, item.at)
        else:
            self._store.upsert(item)

    def _may_pass(self, error: Exception) -> bool:
        try:
            from stallwatch_alerts.storage.engine import may_pass
        except ModuleNotFoundError:
            return False
        return may_pass(error)

    def _warn(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            with contextlib.suppress(Exception):
                reason = ": ".join(filter(None, (type(error).__name__, error_line(error, self._url))))
                self._report(f"an incident could not be stored ({reason})")

    def _prune(self, store: IncidentStore) -> None:
        if self._keep_days is not None:
            from stallwatch_alerts.storage.retention import prune

            with contextlib.suppress(Exception):  # the next agent retries
                prune(store.engine, time.time(), self._keep_days)
