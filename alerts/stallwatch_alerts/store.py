"""Incidents of all runs in one database: SQLite beside the runs by default, any SQLAlchemy URL instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import (
    JSON,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    insert,
    select,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError

from stallwatch_exporter.incident import Incident

_METADATA = MetaData()
_INCIDENTS = Table(
    "incidents",
    _METADATA,
    Column("id", String(400), primary_key=True),
    Column("run", String(200), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("rule", String(200), nullable=False),
    Column("severity", String(20), nullable=False),
    Column("status", String(20), nullable=False),
    Column("episode", Integer, nullable=False),
    Column("opened_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("resolved_at", Float),
    Column("payload", JSON, nullable=False),  # the whole incident; the columns above are for finding it
    Index("incidents_by_run", "run", "opened_at"),
)


class IncidentStore:
    """Keeps the last known state of every incident. Several agents may share one database."""

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        with self._engine.begin() as connection:
            _METADATA.create_all(connection)

    @classmethod
    def at_home(cls, home: Path) -> IncidentStore:
        """The default store: ``incidents.db`` in Stallwatch's state folder."""
        home.mkdir(parents=True, exist_ok=True)
        return cls(f"sqlite:///{home / 'incidents.db'}")

    def upsert(self, incident: Incident) -> None:
        """Insert the incident, or replace what is known of it."""
        row = _row(incident)
        known = update(_INCIDENTS).where(_INCIDENTS.c.id == incident.id).values(row)
        try:
            with self._writing() as connection:
                if connection.execute(known).rowcount == 0:
                    connection.execute(insert(_INCIDENTS).values(row))
        except IntegrityError:  # another agent inserted it in between
            with self._writing() as connection:
                connection.execute(known)

    def list(
        self, run: str | None = None, status: str | None = None, limit: int | None = None
    ) -> list[Incident]:
        """Incidents, newest first; of one run or status only, where asked."""
        query = select(_INCIDENTS.c.payload).order_by(_INCIDENTS.c.opened_at.desc(), _INCIDENTS.c.id)
        if run is not None:
            query = query.where(_INCIDENTS.c.run == run)
        if status is not None:
            query = query.where(_INCIDENTS.c.status == status)
        if limit is not None:
            query = query.limit(limit)
        with self._engine.connect() as connection:
            return [msgspec.convert(payload, Incident) for payload in connection.scalars(query)]

    def close(self) -> None:
        """Give back the connections."""
        self._engine.dispose()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            yield connection


def _engine(url: str) -> Engine:
    # Payloads are plain data; msgspec turns NaN into null, which every database's JSON takes.
    # What an incident holds is nobody's business in an error message.
    engine = create_engine(
        url,
        json_serializer=lambda value: msgspec.json.encode(value).decode(),
        hide_parameters=True,
    )
    if make_url(url).get_backend_name() == "sqlite":
        event.listen(engine, "connect", _sqlite_for_several_processes)
    return engine


def _sqlite_for_several_processes(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout=5000")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _row(incident: Incident) -> dict[str, Any]:
    payload = msgspec.to_builtins(incident)
    row = {column: payload[column] for column in _INCIDENTS.c.keys() if column != "payload"}  # noqa: SIM118
    return {**row, "payload": payload}
