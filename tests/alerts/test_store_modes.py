"""The state folder and its databases are for their user alone, unless somebody made the folder otherwise."""

from __future__ import annotations

import os
import stat
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
def test_databases_follow_their_folder(
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


def test_whoever_comes_first_makes_the_folder_for_its_user(tmp_path: Path) -> None:
    RunFolder.create("a", ["python"], home=tmp_path / "one", now=time.time())
    make_folder(tmp_path / "two")
    assert [mode(tmp_path / name) for name in ("one", "two")] == [0o700, 0o700]
