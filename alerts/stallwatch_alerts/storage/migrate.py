"""Brings a database of any age to the tables of today, once, whoever comes first."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, inspect, text

from stallwatch_alerts.storage.engine import writing

HEAD = "0002"  #: the newest migration
_LOCK = 0x57A11  # any number that is ours among PostgreSQL's advisory locks


def migrate(engine: Engine) -> None:
    """Run the migrations that are missing. A database that a newer Stallwatch made is left as it is.

    All or nothing, also where two processes come at the same moment. Alembic is imported only where there is
    something to do: this runs beside a training.
    """
    with engine.connect() as connection:
        if _version(connection) >= HEAD:
            return
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        if _version(connection) < HEAD:
            _upgrade(connection)


def _version(connection: Connection) -> str:
    if not inspect(connection).has_table("alembic_version"):
        return ""
    return str(connection.scalar(text("SELECT max(version_num) FROM alembic_version")) or "")


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "stallwatch_alerts.storage:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)
