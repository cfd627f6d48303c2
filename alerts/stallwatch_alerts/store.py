"""Store the incidents of all runs in one database: SQLite in the state folder, or any SQLAlchemy URL."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Engine, insert, select, update
from sqlalchemy.exc import IntegrityError

from stallwatch_alerts.storage.engine import make_file, migrate, open_engine, writing
from stallwatch_alerts.storage.tables import HISTORY, INCIDENTS
from stallwatch_exporter.incident import RANKS, Incident
from stallwatch_exporter.settings import make_home
from stallwatch_rules.decoding import convert
from stallwatch_rules.text.foreign_json import NOT_JSON

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change:
    """A change to an incident: ``open``, ``worse``, ``better``, ``resolved``, or a user's action or note."""

    at: float
    what: str
    who: str = ""
    text: str = ""


class IncidentStore:
    """Stores the last known state of every incident. Several agents can share one database."""

    def __init__(self, url: str) -> None:
        self._engine = open_engine(url)
        migrate(self._engine)

    @classmethod
    def at_home(cls, home: Path) -> IncidentStore:
        """Open the default store: ``incidents.db`` in the state folder of Stallwatch."""
        return cls.in_file(home, "incidents.db")

    @classmethod
    def in_file(cls, home: Path, name: str) -> IncidentStore:
        """Open the database that has this name in the state folder.

        If the folder or the file is missing, create it with permissions only for the users of the folder.
        """
        make_home(home)
        make_file(home / name)
        return cls(f"sqlite:///{home / name}")

    def upsert(self, incident: Incident) -> None:
        """Insert the incident, or replace its stored state."""
        try:
            self._write(incident)
        except IntegrityError:  # another agent inserted the incident at the same time
            self._write(incident)

    def list(
        self, run: str | None = None, status: str | None = None, limit: int | None = None
    ) -> list[Incident]:
        """Return the stored incidents, newest first.

        `run` and `status` restrict the result to the incidents of one run or status.
        """
        query = select(INCIDENTS.c.payload).order_by(INCIDENTS.c.opened_at.desc(), INCIDENTS.c.id)
        if run is not None:
            query = query.where(INCIDENTS.c.run == run)
        if status is not None:
            query = query.where(INCIDENTS.c.status == status)
        if limit is not None:
            query = query.limit(limit)
        with self._engine.connect() as connection:
            return _readable(connection.scalars(query))

    def get(self, incident: str) -> Incident | None:
        """Return the incident with this ID, or ``None`` if it does not exist or cannot be read."""
        with self._engine.connect() as connection:
            payload = connection.scalar(select(INCIDENTS.c.payload).where(INCIDENTS.c.id == incident))
        return next(iter(_readable([] if payload is None else [payload])), None)

    def beginning_with(self, text: str, limit: int) -> Sequence[Incident]:
        """Return the incidents whose IDs begin with `text`, newest first."""
        mine = INCIDENTS.c.id.startswith(text, autoescape=True)
        query = select(INCIDENTS.c.payload).where(mine).order_by(INCIDENTS.c.opened_at.desc()).limit(limit)
        with self._engine.connect() as connection:
            found = _readable(connection.scalars(query))
        return [incident for incident in found if incident.id.startswith(text)]  # LIKE in SQLite ignores case

    def history(self, incident: str) -> tuple[Change, ...]:
        """Return the changes to the incident, oldest first."""
        query = select(HISTORY).where(HISTORY.c.incident == incident).order_by(HISTORY.c.id)
        with self._engine.connect() as connection:
            return tuple(Change(row.at, row.what, row.who, row.text) for row in connection.execute(query))

    @property
    def engine(self) -> Engine:
        """The engine of the database, which gives access to the other tables."""
        return self._engine

    def close(self) -> None:
        """Close the connections to the database."""
        self._engine.dispose()

    def _write(self, incident: Incident) -> None:
        row = _row(incident)
        known = (
            select(INCIDENTS.c.status, INCIDENTS.c.severity, INCIDENTS.c.opened_at)
            .where(INCIDENTS.c.id == incident.id)
            .with_for_update()
        )
        with writing(self._engine) as connection:
            before = connection.execute(known).one_or_none()
            if before is None:
                connection.execute(insert(INCIDENTS).values(row))
            else:
                connection.execute(update(INCIDENTS).where(INCIDENTS.c.id == incident.id).values(row))
            for what in _changes(incident, before):
                change = {"what": what, "who": "", "text": incident.resolution}
                connection.execute(
                    insert(HISTORY).values(incident=incident.id, at=incident.updated_at, **change)
                )


def _readable(payloads: Iterable[Any]) -> list[Incident]:
    """Return the readable incidents. Skip unreadable rows, such as rows from a later version."""
    found = []
    for payload in payloads:
        try:
            found.append(convert(payload, Incident, str_keys=True))  # JSON keys are strings, even for ranks
        except NOT_JSON as error:
            _log.warning("an incident cannot be read and is skipped: %s", error)
    return found


def _changes(incident: Incident, before: Any) -> tuple[str, ...]:
    """Return the changes between two states of an incident, as the incident's history records them."""
    if before is None or before.opened_at != incident.opened_at:
        return ("open",) if incident.status == "open" else ("open", "resolved")
    if before.status != incident.status:
        return (incident.status,)
    harm = RANKS.get(incident.severity, 0) - RANKS.get(before.severity, 0)
    return () if harm == 0 else ("worse",) if harm > 0 else ("better",)


def _row(incident: Incident) -> dict[str, Any]:
    payload = msgspec.to_builtins(incident)
    row = {column: payload[column] for column in INCIDENTS.c.keys() if column != "payload"}  # noqa: SIM118
    return {**row, "payload": payload}
