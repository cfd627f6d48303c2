"""Open and migrate a SQLite or PostgreSQL database that several processes can use simultaneously."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import URL, Connection, Engine, Pool, QueuePool, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

HEAD = "0003"  #: the newest migration
_LOCK = 0x57A11  # arbitrary number that identifies the advisory lock of Stallwatch in PostgreSQL
_PATIENCE_SECONDS = 5
_NEW_FILE_SECONDS = 30.0  # maximum number of seconds to wait while other processes create the same file
_AGAIN_SECONDS = 0.02
_MAKING = threading.Lock()
_MIGRATING = threading.Lock()


def open_engine(url: str, *, pool: type[Pool] = QueuePool, **connect: Any) -> Engine:
    """Return an engine for a SQLAlchemy URL without connecting to the database.

    `connect` contains options of the PostgreSQL driver.
    """
    address = make_url(url)
    if address.drivername == "postgresql":  # use the driver that the extra `postgres` installs
        address = address.set(drivername="postgresql+psycopg")
    backend = address.get_backend_name()
    # After the server restarts, existing connections are dead. Therefore, each connection is tested before
    # use, and replaced if it is dead.
    given: dict[str, Any] = {"pool_pre_ping": backend != "sqlite"}
    if backend == "postgresql":
        given |= {"poolclass": pool, "connect_args": {"connect_timeout": _PATIENCE_SECONDS, **connect}}
    return _made(address, **given)


def memory_engine() -> Engine:
    """Return an empty SQLite database in memory. All threads share its single connection."""
    shared = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0}
    return _made(make_url("sqlite://"), connect_args={"check_same_thread": False}, **shared)


def _made(address: URL, **given: Any) -> Engine:
    # Payloads are plain data. msgspec converts NaN to null, which every database accepts in JSON. The
    # parameters are hidden, because error messages must not show the contents of an incident.
    engine = create_engine(
        address,
        json_serializer=lambda value: msgspec.json.encode(value).decode(),
        hide_parameters=True,
        **given,
    )
    if address.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _for_several_processes)
        event.listen(engine, "begin", _begin)
    return engine


def make_file(path: Path) -> None:
    """If the file of a SQLite database is missing, create the file.

    The file has the read and write permissions of its folder: 0600 in a folder with mode 0700. SQLite creates
    the accompanying files (``-wal`` and ``-shm``) with the mode of this file (SQLite, ``src/os_unix.c``,
    findCreateFileMode). If the file cannot be created, the reason is reported when the database is opened.

    This function never opens an existing file, because closing a file drops the locks of all connections
    that this process has to the file (sqlite.org/howtocorrupt.html, section 2.2). For the same reason, a
    new file is closed before any other thread connects.
    """
    with _MAKING, contextlib.suppress(OSError):
        mode = 0o666 & path.parent.stat().st_mode
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode))


def may_pass(error: BaseException) -> bool:
    """Return whether a later retry can succeed. For example, the server might be restarting."""
    if not isinstance(error, DBAPIError):
        return False
    if "sqlite" in type(error.orig).__module__:
        reason = str(error.orig)
        return any(word in reason for word in ("locked", "busy", "full", "disk I/O"))
    return error.connection_invalidated or isinstance(error, (OperationalError, InterfaceError))


def is_unwritable(error: BaseException) -> bool:
    """Return whether the error means that SQLite cannot write.

    Possible causes are a full, failing, or read-only disk, or a process without free file descriptors.
    """
    reason = str(error.orig) if isinstance(error, DBAPIError) else ""
    return any(word in reason for word in ("full", "readonly", "disk I/O", "unable to open"))


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Begin a transaction by acquiring the SQLite write lock. SQLite can wait for the lock only at the start.

    SQLite refuses a transaction that first reads and then writes if another process writes between these
    two operations (SQLITE_BUSY_SNAPSHOT, sqlite.org/isolation.html).
    """
    with engine.execution_options(stallwatch_writing=True).begin() as connection:
        yield connection


def _for_several_processes(connection: Any, _record: object) -> None:
    # BEGIN is issued explicitly, because the driver begins transactions late and commits around schema
    # changes.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={_PATIENCE_SECONDS * 1000}")
    _keep_a_log(cursor)
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _keep_a_log(cursor: sqlite3.Cursor) -> None:
    """Switch to write-ahead logging, so that readers do not wait for writers.

    If several connections open a new file simultaneously, SQLite refuses some of them immediately, regardless
    of `busy_timeout`, because two connections that read a file cannot wait for each other to unlock the file.
    """
    end = time.monotonic() + _NEW_FILE_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= end:
                raise
        time.sleep(_AGAIN_SECONDS)


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("stallwatch_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def migrate(engine: Engine) -> None:
    """Migrate the database to the current schema. Leave a database of a later version unchanged.

    The migrations succeed or fail together, even if two processes migrate at the same moment. Alembic is
    imported only if a migration is missing, because this code runs alongside training.
    """
    with engine.connect() as connection:
        if is_migrated(connection):
            return
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        if not is_migrated(connection):
            _upgrade(connection)


def is_migrated(connection: Connection) -> bool:
    """Return whether the database has all migrations."""
    if not inspect(connection).has_table("alembic_version"):
        return False
    return str(connection.scalar(text("SELECT max(version_num) FROM alembic_version")) or "") >= HEAD


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "stallwatch_alerts.storage:migrations")
    config.attributes["connection"] = connection
    # Alembic keeps state in its modules, so simultaneous migrations would break each other.
    with _MIGRATING:
        command.upgrade(config, HEAD)
