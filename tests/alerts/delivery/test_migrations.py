from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, inspect, text

from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.storage.engine import HEAD, _keep_a_log, memory_engine, migrate, open_engine
from stallwatch_alerts.storage.tables import METADATA
from stallwatch_alerts.store import IncidentStore

# Tables of databases from before they had a version.
_OLD = """
CREATE TABLE incidents (id VARCHAR(400) NOT NULL PRIMARY KEY, run VARCHAR(200) NOT NULL,
  kind VARCHAR(20) NOT NULL, rule VARCHAR(200) NOT NULL, severity VARCHAR(20) NOT NULL,
  status VARCHAR(20) NOT NULL, episode INTEGER NOT NULL, opened_at FLOAT NOT NULL, updated_at FLOAT NOT NULL,
  resolved_at FLOAT, payload JSON NOT NULL);
CREATE INDEX incidents_by_run ON incidents (run, opened_at);
CREATE TABLE messages (id INTEGER NOT NULL PRIMARY KEY, channel VARCHAR(64) NOT NULL,
  name VARCHAR(300) NOT NULL, run VARCHAR(200) NOT NULL, created_at FLOAT NOT NULL, notice JSON NOT NULL,
  state VARCHAR(12) NOT NULL, attempts INTEGER NOT NULL, next_at FLOAT NOT NULL,
  claimed_until FLOAT NOT NULL, sent_at FLOAT, reason VARCHAR(1000) NOT NULL);
INSERT INTO messages VALUES (1, 'abc', 'slack://****', 'old', 1.0,
  '{"message": {"title": "kept", "text": ""}, "level": "failure", "facts": {"id": "old/1"}, "key": ""}',
  'waiting', 0, 0, 0, NULL, '');
"""


def test_migrated_tables_match_the_metadata(engine: Engine) -> None:
    migrate(engine)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_head_constant_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", "stallwatch_alerts.storage:migrations")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_database_without_a_version_is_migrated_with_its_content(
    tmp_path: Path, stall: Callable[..., Any]
) -> None:
    url = f"sqlite:///{tmp_path / 'incidents.db'}"
    before = create_engine(url)
    with before.begin() as connection:
        for statement in _OLD.split(";")[:-1]:
            connection.exec_driver_sql(statement)
    before.dispose()
    store = IncidentStore(url)
    store.upsert(stall())
    outbox = Outbox(store.engine)
    assert outbox.waiting() == 1
    batch = outbox.claim("abc", 10.0)
    assert batch is not None and batch.groups[0].worst.message.title == "kept"
    store.close()


def test_concurrent_migrations_of_an_empty_database_succeed(database: str) -> None:
    engines = [open_engine(database) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(migrate, engines))
    with engines[0].connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM alembic_version")) == 1
    for engine in engines:
        engine.dispose()


def test_several_databases_are_created_concurrently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent whose disk is full does this: it stores messages in a database in memory."""
    under_way = threading.Semaphore(1)

    def upgrade(*_: object) -> None:
        alone = under_way.acquire(blocking=False)
        asked.wait(0.05)  # gives another migration time to start
        assert alone, "two migrations at a time"
        under_way.release()

    asked = threading.Event()
    monkeypatch.setattr("alembic.command.upgrade", upgrade)
    engines = [open_engine(f"sqlite:///{tmp_path / str(number)}.db") for number in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(migrate, [*engines, memory_engine()]))


def test_locked_database_is_retried() -> None:
    """SQLite now and then refuses one of several clients that come at once."""
    refusals = ["database is locked"] * 3

    class Cursor:
        def execute(self, said: str) -> None:
            if refusals:
                raise sqlite3.OperationalError(refusals.pop())

    _keep_a_log(Cursor())  # type: ignore[arg-type]
    assert refusals == []
    refusals.append("disk I/O error")
    with pytest.raises(sqlite3.OperationalError, match="disk"):
        _keep_a_log(Cursor())  # type: ignore[arg-type]


def test_newer_database_is_not_changed(engine: Engine) -> None:
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    migrate(engine)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "9999"


def test_failed_migration_is_rolled_back(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE silences (something INTEGER)"))
    try:
        migrate(engine)
    except Exception:
        pass
    else:
        raise AssertionError("it cannot have worked")
    assert inspect(engine).get_table_names() == ["silences"]
