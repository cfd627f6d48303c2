"""The state folder and its databases are private to the user, unless the folder was made otherwise."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.rings.probing import make_folder
from stallwatch_exporter.runs.runfolder import RunFolder


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("folder_mode", [None, 0o700, 0o755])
def test_database_permissions_follow_the_folder(
    tmp_path: Path, stall: Callable[..., Incident], folder_mode: int | None
) -> None:
    home = tmp_path / "state" / "stallwatch"
    if folder_mode is not None:
        home.mkdir(parents=True)
        home.chmod(folder_mode)
    store = IncidentStore.at_home(home)
    store.upsert(stall())
    files = sorted(home.iterdir())
    assert home / "incidents.db-wal" in files
    assert mode(home) == (folder_mode or 0o700)
    assert {mode(file) for file in files} == {0o644 if folder_mode == 0o755 else 0o600}
    store.close()


def test_first_process_creates_the_folder_of_its_user(tmp_path: Path) -> None:
    RunFolder.create("a", ["python"], home=tmp_path / "one", now=time.time())
    make_folder(tmp_path / "two")
    assert [mode(tmp_path / name) for name in ("one", "two")] == [0o700, 0o700]


def test_reopening_a_database_keeps_the_locks_of_others(
    tmp_path: Path, stall: Callable[..., Incident]
) -> None:
    """Without its lock, a process does not exist for SQLite: another one would remove the journal."""
    store = IncidentStore.at_home(tmp_path)
    store.upsert(stall())
    with store.engine.connect() as held:
        held.exec_driver_sql("SELECT * FROM incidents").all()
        IncidentStore.at_home(tmp_path).close()
        assert "open" in _read_elsewhere(tmp_path / "incidents.db")
        assert (tmp_path / "incidents.db-wal").exists()
    store.upsert(stall(status="resolved"))
    assert "resolved" in _read_elsewhere(tmp_path / "incidents.db")
    store.close()


def _read_elsewhere(database: Path) -> str:
    """Return the incidents' status as another process reads it, which opens and closes the database."""
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]);"
        "print(c.execute('SELECT status FROM incidents').fetchall()); c.close()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, database], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout
