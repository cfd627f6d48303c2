"""Root runs with the HOME of another account, as ``sudo -E`` gives: no link in it chooses where it writes."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from stallwatch.cli import cli
from stallwatch.config.trust import trust
from stallwatch_exporter import settings
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.settings import cache_home, state_home
from stallwatch_rules.matching import disk_cache

Eves = Callable[..., Path]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory the system knows for this account; no variable names a place of Stallwatch's."""
    for name in list(os.environ):
        if name.startswith(("STALLWATCH_", "XDG_")):
            monkeypatch.delenv(name)
    home = tmp_path / "own"
    home.mkdir()
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: SimpleNamespace(pw_dir=str(home)))
    settings._report_folders_used.cache_clear()
    return home


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder of the user's, to which the attacker's links lead."""
    folder = tmp_path / "private"
    folder.mkdir()
    return folder


@pytest.fixture
def home(tmp_path: Path, eves: Eves, own: Path, private: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The attacker's home directory: its usual places are links."""
    home = tmp_path / "eve"
    (home / ".local").mkdir(parents=True)
    links = [home / ".local" / "state", home / ".cache", home / ".config"]
    for link in links:
        link.symlink_to(private)
    monkeypatch.setenv("HOME", str(home))
    return eves(home, home / ".local", *links)


def test_symlinks_in_a_foreign_home_do_not_redirect_root(
    home: Path, own: Path, private: Path, tmp_path: Path
) -> None:
    """Runs, compiled patterns and the list of trusted files are written below root's own home."""
    run = RunFolder.create("mine", ["train"], home=state_home(), now=1.0)
    disk_cache.write(cache_home() / "patterns", b"native code")
    (tmp_path / "stallwatch.toml").touch()
    trust(tmp_path / "stallwatch.toml")
    assert list(private.iterdir()) == []
    kept = {path.relative_to(own).as_posix() for path in own.rglob("*") if path.is_file()}
    assert run.problem is None and not run.moved
    assert {".cache/stallwatch/patterns", ".config/stallwatch/trusted.json"} <= kept
    assert (own / ".local/state/stallwatch/runs/mine").is_dir()


def test_foreign_home_is_reported_in_one_line(home: Path, own: Path) -> None:
    done = CliRunner().invoke(cli, ["runs"])
    named, empty = done.stderr.splitlines()
    assert named.startswith(f"stallwatch: {home} belongs to another account, so") and f"under {own}" in named
    assert f"no runs in {own}/.local/state/stallwatch yet" in empty


@pytest.mark.parametrize("owned", ["eve", "eve/.local", "eve/.local/state", "eve/.local/state/stallwatch"])
def test_single_foreign_folder_is_sufficient_to_reject_the_home(
    owned: str, tmp_path: Path, eves: Eves, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home of root's own in which the attacker made a folder, such as with an earlier `sudo -u`."""
    (tmp_path / "eve/.local/state/stallwatch").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "eve"))
    assert state_home() == tmp_path / "eve/.local/state/stallwatch"
    eves(tmp_path / owned)
    assert state_home() == own / ".local/state/stallwatch"


def test_root_symlink_into_a_foreign_folder_is_rejected(
    tmp_path: Path, eves: Eves, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "eve").mkdir()
    (tmp_path / "link").symlink_to(eves(tmp_path / "eve"))
    monkeypatch.setenv("HOME", str(tmp_path / "link"))
    assert cache_home() == own / ".cache/stallwatch"


def test_inherited_xdg_folders_of_another_account_are_rejected(
    home: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``XDG_STATE_HOME`` and ``XDG_CACHE_HOME`` are kept, HOME is not."""
    monkeypatch.setenv("HOME", str(own))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / ".local" / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "new"))
    assert (state_home(), cache_home()) == (own / ".local/state/stallwatch", own / ".cache/stallwatch")


def test_alias_of_the_users_home_is_not_reported(
    home: Path, own: Path, eves: Eves, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Large sites mount homes below a folder of another account, with a link to each that may change."""
    (home / "link").symlink_to(own)
    monkeypatch.setenv("HOME", str(eves(home / "link")))
    assert state_home() == own / ".local/state/stallwatch"
    assert capsys.readouterr().err == ""


def test_folder_that_the_user_names_is_kept(home: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user who names it has decided: a group may share it."""
    monkeypatch.setenv("STALLWATCH_HOME", "~/state")
    monkeypatch.setenv("STALLWATCH_CACHE", str(home / "cache"))
    assert (state_home(), cache_home()) == (home / "state", home / "cache")


def test_container_without_a_home_keeps_its_record(
    home: Path, own: Path, eves: Eves, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of the host is mounted as the only home, or the user is in no list: nowhere else is better."""
    place = home / ".local/state/stallwatch"
    eves(own)
    assert state_home() == place

    def unknown(_uid: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert state_home() == place
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: SimpleNamespace(pw_dir=str(home)))
    assert RunFolder.create("mine", ["train"], home=state_home(), now=1.0).problem is None
