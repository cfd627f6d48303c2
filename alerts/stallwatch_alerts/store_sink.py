"""Incidents into the store, behind the agent's back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from stallwatch_alerts.masking import hide_secrets
from stallwatch_alerts.worker import Worker
from stallwatch_exporter.incident import Incident

if TYPE_CHECKING:
    from stallwatch_alerts.store import IncidentStore


class StoreSink:
    """Writes every change of an incident from a thread of its own: a slow disk must not hold up the agent.

    The store is opened there too, on the first incident: most runs have none, and SQLAlchemy takes a second
    to import. `report` is told of the first failure, without the secrets of the database's `url`.
    """

    def __init__(
        self,
        open_store: Callable[[], IncidentStore],
        report: Callable[[str], None] = lambda _: None,
        url: str = "",
    ) -> None:
        self._open_store = open_store
        self._store: IncidentStore | None = None
        self._report = report
        self._url = url
        self._worker: Worker[Incident] = Worker("stallwatch-incidents", self._write)

    def __call__(self, incident: Incident) -> None:
        """Queue the incident as it is now."""
        self._worker.put(msgspec.structs.replace(incident))

    @property
    def failed(self) -> int:
        """Changes that could not be written."""
        return self._worker.failed + self._worker.dropped

    def close(self, timeout: float) -> bool:
        """Write what is queued within `timeout` seconds; whether all was written."""
        done = self._worker.close(timeout)
        if done and self._store is not None:
            self._store.close()
        return done and self.failed == 0

    def _write(self, incident: Incident, _give_up: threading.Event) -> None:
        try:
            if self._store is None:
                self._store = self._open_store()
            self._store.upsert(incident)
        except Exception as error:
            if self._worker.failed == 0:
                with contextlib.suppress(Exception):
                    self._report(f"an incident could not be stored ({self._reason(error)})")
            raise

    def _reason(self, error: Exception) -> str:
        """Its first line: below it, SQLAlchemy shows the statement."""
        said = hide_secrets(str(error), self._url).strip().splitlines()
        return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
