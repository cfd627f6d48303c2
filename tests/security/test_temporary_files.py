"""Another account prepares attacks where Stallwatch writes: in shared folders, and under guessable names."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch_exporter.rings.probing import make_folder
from stallwatch_exporter.runs.runfolder import RunFolder, kept_runs
from stallwatch_exporter.settings import temporary_home
from stallwatch_rules.files import replacing
from stallwatch_rules.matching import disk_cache

Eves = Callable[..., Path]
Attacked = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user's, to which the attacker's links lead."""
    path = tmp_path / "victim"
    path.write_text("mine")
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that every account can write."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_symlink_with_the_name_of_an_unfinished_table_is_not_followed(shared: Path, victim: Path) -> None:
    """The name of the file that ``samples -o`` writes first is not to be had from the process's number."""
    (shared / f".out.csv.{os.getpid()}.part").symlink_to(victim)
    with replacing(shared / "out.csv") as out:
        out.write(b"rows")
    assert (victim.read_text(), (shared / "out.csv").read_text()) == ("mine", "rows")


def test_symlink_with_the_exact_temporary_name_is_not_followed(
    shared: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even a name that was guessed is not followed: the table is refused, and the file is left alone."""
    monkeypatch.setattr(os, "urandom", bytes)
    (shared / f".out.csv.{bytes(8).hex()}.part").symlink_to(victim)
    with pytest.raises(FileExistsError), replacing(shared / "out.csv"):
        raise AssertionError("it was opened")
    assert victim.read_text() == "mine" and not (shared / "out.csv").exists()


def test_symlink_with_the_name_of_the_table_is_not_followed(shared: Path, victim: Path) -> None:
    """The table takes the link's place, and what the link leads to stays as it is."""
    (shared / "out.csv").symlink_to(victim)
    with replacing(shared / "out.csv") as out:
        out.write(b"rows")
    assert victim.read_text() == "mine" and not (shared / "out.csv").is_symlink()


def test_compiled_patterns_planted_in_the_cache_are_ignored(eves: Eves, tmp_path: Path) -> None:
    """A database of patterns is native code to its engine: that of another account is refused."""
    path = tmp_path / "cache" / "patterns.db"
    disk_cache.write(path, b"planted")
    assert disk_cache.read(path) == b"planted"
    eves(path)
    assert disk_cache.read(path) is None


@pytest.mark.parametrize("how", ["folder", "link", "pipe"])
def test_parsed_rules_planted_in_a_foreign_cache_are_ignored(
    eves: Eves, tmp_path: Path, victim: Path, how: str
) -> None:
    """Neither the folder of another account nor a link or pipe in one's own is read, or waited for."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    planted = cache / "catalogue.msgpack"
    if how == "link":
        planted.symlink_to(victim)
    elif how == "pipe":
        os.mkfifo(planted)
    else:
        disk_cache.write(planted, b"own")
        assert disk_cache.read(planted) == b"own"
        eves(cache)
    assert disk_cache.read(planted) is None
    assert victim.read_text() == "mine"


def test_rings_are_not_written_to_a_prepared_foreign_folder(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the state folder is closed, rings lie in a new folder of the user alone, under a random name."""
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    (tmp_path / "home").write_text("no folder")
    first, second = make_folder(tmp_path / "home"), make_folder(tmp_path / "home")
    assert first.parent == second.parent == shared and first != second
    assert mode(first) == mode(second) == 0o700


@pytest.mark.parametrize("how", ["writable", "another's", "sticky, but another's", "sticky"])
def test_swapped_run_folder_in_tmpdir_is_detected(
    eves: Eves, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """An account that can rename entries of ``$TMPDIR`` could replace the folder: it is not used then."""
    place, home = tmp_path / "tmp", tmp_path / "home"
    place.mkdir()
    place.chmod({"writable": 0o777, "another's": 0o755}.get(how, 0o1777))
    if "another's" in how:
        eves(place)
    monkeypatch.setenv("TMPDIR", str(place))
    home.write_text("no folder")
    folder = RunFolder.create("sft", ["x"], home=home)
    if how == "sticky":
        assert folder.problem is None and [run for _, run in kept_runs(home)] == [folder.info]
        return
    assert folder.problem is not None and f"can replace files in {place} (set TMPDIR" in folder.problem
    assert list(temporary_home(home).iterdir()) == []
    monkeypatch.setattr("stallwatch_exporter.runs.runfolder.why_not_own", lambda _: "")
    assert RunFolder.create("sft", ["x"], home=home).problem is None
    assert kept_runs(home) == []  # what is planted there is not read


@pytest.mark.parametrize("name", ["agent.json", "incidents.jsonl"])
def test_symlink_in_a_run_folder_is_not_followed(shared: Path, victim: Path, name: str) -> None:
    """In a state folder that a team shares, nothing of a run is written through a link."""
    folder = RunFolder.create("sft", ["x"], home=shared)
    (folder.path / name).unlink(missing_ok=True)
    (folder.path / name).symlink_to(victim)
    folder.append_event({})
    folder._append("incidents.jsonl", {})
    folder.write_info(state="training")
    assert victim.read_text() == "mine" and not (folder.path / "agent.json").is_symlink()


def test_state_folder_is_private_with_an_open_umask(attacked: Attacked, tmp_path: Path) -> None:
    """Logs and incidents are for their user alone, whatever the umask is."""
    home = tmp_path / "stallwatch-home"
    old = os.umask(0)
    try:
        assert attacked(tmp_path, "run", "--port", "0", "--", "true").returncode == 0
    finally:
        os.umask(old)
    assert mode(home) == 0o700


@pytest.mark.parametrize("how", ["known", "link"])
def test_planted_cookie_secret_of_the_dashboard_is_not_used(
    eves: Eves, tmp_path: Path, victim: Path, how: str
) -> None:
    """In a state folder that a team shares, an account that knows the secret could sign in as any user."""
    from stallwatch_dashboard.access import kept_cookie_secret

    path = tmp_path / "home" / "dashboard-cookie-secret"
    path.parent.mkdir(mode=0o777)
    known = "known-to-the-attacker-who-wrote-it-here"
    if how == "link":
        path.symlink_to(victim)
    else:
        path.write_text(known)
        path.chmod(0o600)
        eves(path)
    made = kept_cookie_secret(path.parent)
    assert made not in (known, "mine") and kept_cookie_secret(path.parent) == made
    assert victim.read_text() == "mine" and not path.is_symlink() and mode(path) == 0o600


def test_pipe_and_endless_device_among_the_logs_are_skipped(attacked: Attacked, tmp_path: Path) -> None:
    """Neither is waited for: only files are read."""
    logs = tmp_path / "logs"
    logs.mkdir()
    os.mkfifo(logs / "rank0.log")
    (logs / "rank1.log").symlink_to("/dev/zero")
    (logs / "rank2.log").write_text("step 1 loss 2.0\n")
    done = attacked(tmp_path, "diagnose", "logs")
    assert done.returncode == 2 and "1 file, 1 line" in done.stdout  # 2: something was not read
    assert "rank0.log: this is a pipe" in done.stderr and "rank1.log: this is a device" in done.stderr


def test_symlink_in_place_of_a_draft_page_is_not_followed(
    attacked: Attacked, tmp_path: Path, victim: Path
) -> None:
    """``rules new`` overwrites nothing, and follows no link."""
    (tmp_path / "a.log").write_text(
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    go()\n'
        "  File \"train.py\", line 2, in go\n    raise ValueError('no such widget')\n"
        "ValueError: no such widget\n"
    )
    family = tmp_path / "my-rules" / "data"
    family.mkdir(parents=True)
    (family / "no-widget.md").symlink_to(victim)
    done = attacked(tmp_path, "rules", "new", "no-widget", "--from", "a.log", "--family", "data")
    assert done.returncode == 2 and victim.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("report.md", "diagnose a.log --markdown -o report.md"),
        ("page.html", "diagnose a.log --html page.html"),
        ("recording.yml", "rules export --prometheus ."),
        ("stallwatch-run.json", "grafana boards ."),
    ],
)
def test_symlink_with_the_name_of_a_report_is_not_followed(
    attacked: Attacked, eves: Eves, shared: Path, victim: Path, name: str, command: str
) -> None:
    """A link of another account is refused by name; the report holds lines that others chose."""
    (shared / "a.log").write_text("step 1 loss 2.0\n")
    link = shared / name
    link.symlink_to(victim)
    eves(link)
    done = attacked(shared, *command.split())
    assert done.returncode == 2 and victim.read_text() == "mine"
    assert f"{name}: cannot be written: it is a link that belongs to another account" in done.stderr


@pytest.mark.parametrize(
    "command", ["rules export --prometheus out", "diagnose a.log --markdown -o out/report.md"]
)
def test_symlink_with_the_name_of_the_reports_folder_is_not_followed(
    attacked: Attacked, eves: Eves, shared: Path, tmp_path: Path, command: str
) -> None:
    """Nothing is written into a folder of the user's that another account chose."""
    (shared / "a.log").write_text("step 1 loss 2.0\n")
    (tmp_path / "chosen").mkdir()
    (shared / "out").symlink_to(tmp_path / "chosen")
    eves(shared / "out")
    done = attacked(shared, *command.split())
    assert done.returncode == 2 and not list((tmp_path / "chosen").iterdir())
    assert (
        "cannot be written: its folder is a link that belongs to another account; choose another"
        in done.stderr
    )


def test_symlink_of_the_user_is_followed_for_writing(
    attacked: Attacked, tmp_path: Path, victim: Path
) -> None:
    (tmp_path / "a.log").write_text("step 1 loss 2.0\n")
    (tmp_path / "report.md").symlink_to(victim)
    assert attacked(tmp_path, "diagnose", "a.log", "--markdown", "-o", "report.md").returncode == 0
    assert victim.read_text().startswith("#")
    done = attacked(tmp_path, "diagnose", "a.log", "-o", "/dev/stdout")
    assert (done.returncode, "step 1, last loss 2" in done.stdout) == (0, True)
