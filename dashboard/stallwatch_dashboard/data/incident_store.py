"""Read incidents with their changes, notifications, and notes from the database, and store users' changes."""

from __future__ import annotations

import glob
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from stallwatch_alerts.delivery.outbox import Delivery, Outbox
from stallwatch_alerts.people import OperatorActions, Silence
from stallwatch_alerts.store import Change, IncidentStore
from stallwatch_exporter.incident import Incident
from stallwatch_rules.text.redact import redact

_log = logging.getLogger(__name__)
_UNREADABLE = (SQLAlchemyError, msgspec.MsgspecError, OSError)
_LATE_SECONDS = 300.0  #: maximum number of seconds from an incident's end to its last message
T = TypeVar("T")


class NotKept(Exception):
    """Raised if a user's change could not be stored. The message contains no addresses or secrets."""


class LazyIncidentStore:
    """Reads and changes incidents in the database, which it opens on first use.

    If the database cannot be used, reads return nothing instead of raising an exception, and writes raise
    `NotKept`.
    """

    def __init__(self, url: str, home: Path) -> None:
        self._url = url
        self._home = home
        self._lock = threading.Lock()
        self._store: IncidentStore | None = None

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def incidents(
        self, run: str | None = None, status: str | None = None, limit: int | None = None
    ) -> list[Incident]:
        """Return incidents, newest first, except incidents that were merged into a multi-host incident."""
        found: list[Incident] = self._read(lambda store: store.list(run, status, limit), [])
        merged = {alias for incident in found for alias in incident.aliases}
        return [incident for incident in found if incident.id not in merged]

    def unreadable(self) -> str | None:
        """Return the reason (without secrets) why incidents cannot be read, or None if they can be read."""
        try:
            self._opened().list(limit=1)
        except _UNREADABLE as error:
            return _plain(error)
        return None

    def incident(self, key: str) -> Incident | None:
        return self._read(lambda store: store.get(key), None)

    def history(self, key: str) -> Sequence[Change]:
        """Return the changes to an incident, oldest first."""
        return self._read(lambda store: store.history(key), ())

    def deliveries(self, incident: Incident) -> list[Delivery]:
        """Return the messages about the run that were stored during the incident, oldest first."""
        until = float("inf") if incident.resolved_at is None else incident.resolved_at + _LATE_SECONDS
        found: list[Delivery] = self._read(
            lambda store: Outbox(store.engine).deliveries(incident.run, 200), []
        )
        return [
            delivery for delivery in reversed(found) if incident.opened_at - 1 <= delivery.created_at <= until
        ]

    def acknowledged(self, key: str) -> bool:
        return self._read(lambda store: OperatorActions(store.engine).is_acknowledged(key), False)

    def silences(self, incident: Incident, now: float) -> list[Silence]:
        """Return the silences that apply to the incident at `now`."""
        found: list[Silence] = self._read(lambda store: OperatorActions(store.engine).silences(now), [])
        return [silence for silence in found if silence.quiets(incident, now)]

    def acknowledge(self, key: str, who: str, now: float) -> None:
        self._write(lambda store: OperatorActions(store.engine).acknowledge(key, who, now))

    def note(self, key: str, who: str, text: str, now: float) -> None:
        self._write(lambda store: OperatorActions(store.engine).note(key, who, text, now))

    def silence(self, incident: Incident, seconds: float, who: str, now: float) -> None:
        run, rule = glob.escape(incident.run), glob.escape(incident.rule)  # a silence contains patterns
        made = Silence(now, now + seconds, run=run, rule=rule, who=who)
        self._write(lambda store: OperatorActions(store.engine).silence(made))

    def end_silences(self, silences: Iterable[Silence], now: float) -> None:
        def act(store: IncidentStore) -> None:
            for silence in silences:
                OperatorActions(store.engine).expire(silence.id, now)  # another person might have ended it

        self._write(act)

    def _opened(self) -> IncidentStore:
        with self._lock:
            if self._store is None:
                self._store = IncidentStore(self._url) if self._url else IncidentStore.at_home(self._home)
            return self._store

    def _read(self, read: Callable[[IncidentStore], T], otherwise: T) -> T:
        try:
            return read(self._opened())
        except _UNREADABLE as error:
            _log.warning("incidents cannot be read: %s", type(error).__name__)
            return otherwise

    def _write(self, act: Callable[[IncidentStore], object]) -> None:
        try:
            done = act(self._opened())
        except _UNREADABLE as error:
            raise NotKept(type(error).__name__) from error
        if done is False:
            raise NotKept("the database does not contain this incident")


def _plain(error: Exception) -> str:
    """Return the first line of the driver's error. SQLAlchemy errors contain SQL, values, and addresses."""
    of_driver = getattr(error, "orig", None) or (error if isinstance(error, OSError) else "")
    return redact((str(of_driver).splitlines() or [type(error).__name__])[0][:200])
