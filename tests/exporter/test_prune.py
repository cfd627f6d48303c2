"""Old runs are removed by age, then by size; running, pinned and foreign runs stay."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from stallwatch_exporter.runs.prune import KEEP, prune
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.settings import ExporterSettings, temporary_home
from stallwatch_exporter.watching.opening import open_agent
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis

NOW = 100 * 86400.0


def ended(home: Path, name: str, days_ago: float, kilobytes: int = 1) -> RunFolder:
    folder = RunFolder.create(name, [], home=home, now=NOW - days_ago * 86400)
    (folder.path / "output.log").write_bytes(b"x" * kilobytes * 1000)
    folder.close(Diagnosis("healthy"), ended_at=NOW - days_ago * 86400)
    return folder


def left(home: Path) -> set[str]:
    return {path.name for path in (home / "runs").iterdir()}


def test_old_runs_are_removed_with_a_notice_how_to_keep_them(tmp_path: Path) -> None:
    messages: list[str] = []
    ended(tmp_path, "old", 31)
    ended(tmp_path, "new", 29)
    assert prune(tmp_path, 30, 10, NOW, messages.append) == ["old"]
    assert left(tmp_path) == {"new"}
    (line,) = messages
    assert line.startswith("removed 1 old run (old)") and f"<run>/{KEEP}" in line


def test_oldest_runs_are_removed_first_above_the_size_limit(tmp_path: Path) -> None:
    for name, days in (("a", 3), ("b", 2), ("c", 1)):
        ended(tmp_path, name, days, kilobytes=100)
    assert prune(tmp_path, 30, 0.00025, NOW, lambda line: None) == ["a"]
    assert left(tmp_path) == {"b", "c"}


def test_kept_running_linked_and_foreign_folders_are_not_removed(tmp_path: Path) -> None:
    messages: list[str] = []
    (ended(tmp_path, "kept", 99).path / KEEP).touch()
    running = ended(tmp_path, "running", 99)
    running.write_info(ended_at=None, updated_at=4e9)
    (tmp_path / "runs" / "foreign").mkdir()
    elsewhere = ended(tmp_path / "elsewhere", "linked", 99)
    (tmp_path / "runs" / "linked").symlink_to(elsewhere.path)
    assert prune(tmp_path, 30, 0, NOW, messages.append) == []
    assert left(tmp_path) == {"kept", "running", "foreign", "linked"}
    assert messages == []


@pytest.mark.parametrize("how", ["private", "group", "mounted", "link", "in TMPDIR"])
def test_new_run_prunes_any_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalogue: Catalogue, how: str
) -> None:
    """The folders are a shared one, a mounted volume, a link, and a folder in ``$TMPDIR``."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    home = tmp_path / "home"
    place = temporary_home(home) if how == "in TMPDIR" else tmp_path / "volume" if how == "link" else home
    place.mkdir(mode=0o700)
    ended(place, "old", 31)
    if how == "link":
        home.symlink_to(place)
    elif how == "group":
        place.chmod(0o2770)
    elif how == "mounted":
        place.chmod(0o777)
    settings = ExporterSettings(home=home)
    open_agent([], settings, [], catalogue, name="new", metrics=False, notice=lambda _: None, started=NOW)
    for thread in threading.enumerate():
        if thread.name == "stallwatch prune":
            thread.join()
    assert "old" not in left(place) and "new" in left(home)


def test_run_of_a_dead_agent_counts_as_ended(tmp_path: Path) -> None:
    folder = ended(tmp_path, "dead", 40)
    folder.write_info(ended_at=None, pid=2**22 + 1)
    assert prune(tmp_path, 30, 10, NOW, lambda line: None) == ["dead"]


def test_run_of_another_container_is_kept_while_its_agent_writes(tmp_path: Path) -> None:
    """The folder may be full; the run's process id is unused here, or belongs to any process."""
    for name, pid, silent in (("writes", 2**22 + 1, 1.0), ("silent", os.getpid(), 86400.0)):
        folder = ended(tmp_path, name, 2)
        folder.write_info(ended_at=None, pid=pid, namespace="b00t/pid:[1]", updated_at=NOW - silent)
    assert prune(tmp_path, 30, 0, NOW, lambda line: None) == ["silent"]


def test_missing_home_is_not_an_error(tmp_path: Path) -> None:
    assert prune(tmp_path / "nowhere", 30, 10, NOW, lambda line: None) == []
