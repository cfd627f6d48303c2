"""Another account of the host searches for logs, numbers and secrets in the files of Stallwatch."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")

Python = Callable[..., subprocess.CompletedProcess[str]]

TRAINING = """
import os, pathlib
print("step 1/9 loss 1.5", "step 2/9 loss 1.4", sep="\\n", flush=True)
pathlib.Path("checkpoint.bin").write_bytes(b"x")
pathlib.Path("umask").write_text(oct(os.umask(0)))
raise RuntimeError("the data is gone")
"""
RUN = "from stallwatch.cli import main; main()"
# What the serving process of the dashboard does before it takes requests, and after each scrape.
KEEPS_NUMBERS = """
import os, sys
from pathlib import Path
from stallwatch_dashboard.access import kept_cookie_secret
from stallwatch_dashboard.data.metrics_page import Reading
from stallwatch_dashboard.data.store import MetricStore
from stallwatch_exporter.private import keep_private
home = Path(sys.argv[1])
keep_private(home)
kept_cookie_secret(home)
store = MetricStore.open(home / "metrics.duckdb")
assert store.problem is None
store.write([Reading("run", "stallwatch_step", None, "", 1.0)], 1000.0)
os._exit(0)  # killed: the file beside it stays
"""


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Run code as a process of its own with the usual umask, under which others may read what is made."""

    def call(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "STALLWATCH_HOME": str(tmp_path / "home")}
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            cwd=tmp_path,
            env=env,
            umask=0o022,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return call


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def open_to_others(folder: Path) -> list[tuple[str, str]]:
    """The entries of a folder to which other accounts have access, by their mode."""
    paths = [folder, *folder.rglob("*")]
    return [(str(path.relative_to(folder)), oct(mode(path))) for path in paths if mode(path) & 0o077]


def test_files_of_a_run_are_private(tmp_path: Path, python: Python, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a watched run leaves, and nothing in the cache, is open to others; its own files are."""
    monkeypatch.setenv("STALLWATCH_CACHE", str(tmp_path / "cache"))
    done = python(RUN, "run", "--port", "0", "--", sys.executable, "-c", TRAINING)
    assert done.returncode == 1, done.stderr
    kept = {path.name for path in (tmp_path / "home").rglob("*")}
    assert {"agent.json", "output.log", "diagnosis.json", "incidents.jsonl", "incidents.db"} <= kept
    assert any(path.suffix == ".hsdb" or path.suffix == ".msgpack" for path in (tmp_path / "cache").iterdir())
    assert open_to_others(tmp_path / "home") == open_to_others(tmp_path / "cache") == []
    assert (tmp_path / "umask").read_text() == "0o22"
    assert mode(tmp_path / "checkpoint.bin") == 0o644


def test_folder_for_prometheus_is_readable(tmp_path: Path, python: Python) -> None:
    """What is private must not be all: the folder of announcements is made for Prometheus's account, too."""
    folder = tmp_path / "var" / "stallwatch" / "targets"
    training = (
        "import sys, time; from pathlib import Path; folder = Path(sys.argv[1])\n"
        "while not (files := [*folder.glob('*.json')]): time.sleep(0.05)\n"
        "(file,) = files\n"
        "print([oct(path.stat().st_mode & 0o7777) for path in (file, folder, *folder.parents[:2])])"
    )
    done = python(RUN, "run", "--port", "0", "--sd-dir", folder, "--", sys.executable, "-c", training, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['0o644', '0o755', '0o755', '0o755']"
    assert mode(tmp_path / "home") == 0o700


def test_files_of_the_dashboard_are_private(tmp_path: Path, python: Python) -> None:
    """Neither the numbers nor the journal beside them, nor the secret of the cookies, is open to others."""
    done = python(KEEPS_NUMBERS, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    kept = {path.name for path in (tmp_path / "home").iterdir()}
    assert {"metrics.duckdb", "metrics.duckdb.wal"} <= kept
    assert open_to_others(tmp_path / "home") == []


def test_serving_process_restricts_the_folder_first(tmp_path: Path, python: Python) -> None:
    """The dashboard's process does so before it opens anything."""
    code = (
        "import os, sys; from stallwatch_dashboard import server;"
        "server.shared = lambda: sys.exit(oct(os.umask(0)));"
        "sys.stdin = type('Terminal', (), {'isatty': lambda self: True})(); server.main()"
    )
    assert python(code).stderr.strip() == "0o77"
    assert mode(tmp_path / "home") == 0o700


def test_permissions_of_old_files_are_restricted(tmp_path: Path, python: Python) -> None:
    """What release 0.1 left open is closed at the next start; a link out of the folder is not followed."""
    home = tmp_path / "home"
    (home / "runs" / "old").mkdir(parents=True)
    home.chmod(0o700)
    (home / "metrics.duckdb").write_bytes(b"")
    (home / "runs" / "old" / "output.log").write_bytes(b"a token\n")
    outside = tmp_path / "outside.txt"
    outside.write_bytes(b"")
    for path in (home / "metrics.duckdb", outside):
        path.chmod(0o644)
    (home / "runs").chmod(0o755)
    (home / "link").symlink_to(outside)
    code = (
        "import sys, pathlib; from stallwatch_exporter.private import keep_private;"
        "keep_private(pathlib.Path(sys.argv[1]))"
    )
    done = python(code, home)
    assert done.returncode == 0, done.stderr
    assert [mode(home / "metrics.duckdb"), mode(home / "runs")] == [0o600, 0o700]
    assert mode(outside) == 0o644


def test_folder_shared_with_a_group_keeps_its_permissions(tmp_path: Path, python: Python) -> None:
    """A folder that its user opened to a group stays open to it, and closed to all others."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o750)
    done = python(RUN, "run", "--port", "0", "--", sys.executable, "-c", TRAINING)
    assert done.returncode == 1, done.stderr
    assert mode(home) == 0o750
    for name in ("runs", "incidents.db"):
        assert mode(home / name) & 0o070 and not mode(home / name) & 0o007
    assert [path for path in home.rglob("*") if mode(path) & 0o007] == []


def test_replacement_of_an_uncreatable_folder_is_private(tmp_path: Path, python: Python) -> None:
    """What is kept elsewhere is for the user alone, too."""
    home, place = Path("/proc/no-home"), tmp_path / "tmp"
    place.mkdir(mode=0o700)
    code = f"import os; os.environ |= {{'TMPDIR': {str(place)!r}, 'STALLWATCH_HOME': {str(home)!r}}}; {RUN}"
    done = python(code, "run", "--name", "sft", "--port", "0", "--", sys.executable, "-c", TRAINING)
    assert done.returncode == 1, done.stderr
    assert {path.name for path in place.rglob("*")} >= {"sft", "agent.json", "diagnosis.json"}
    assert open_to_others(place) == []
    assert (tmp_path / "umask").read_text() == "0o22"
    found = python(code, "diagnose", home / "runs" / "sft")
    assert found.returncode == 1 and "step 1 – 2 of 9" in found.stdout


def test_stricter_umask_of_the_user_is_kept(tmp_path: Path) -> None:
    """Nothing becomes more open than the user's own umask allows, whatever the folder's mode."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    code = (
        "import os, sys, pathlib; from stallwatch_exporter.private import keep_private, usual_umask;"
        "keep_private(pathlib.Path(sys.argv[1])); print(oct(usual_umask()), oct(os.umask(0)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, home], umask=0o077, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0o77", "0o77"]


def test_pipes_in_a_run_folder_do_not_block_commands(tmp_path: Path) -> None:
    """In a state folder that is shared, one account must not hold up the runs of another."""
    folder = tmp_path / "home" / "runs" / "planted"
    folder.mkdir(parents=True)
    for name in ("agent.json", "record.json", "diagnosis.json", "incidents.jsonl"):
        os.mkfifo(folder / name)
    environ = os.environ | {"STALLWATCH_HOME": str(tmp_path / "home")}
    for command in ("runs", "run --no-metrics --name mine -- true"):
        done = subprocess.run(
            [sys.executable, "-m", "stallwatch", *command.split()],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
    assert "How the run ended: finished" in done.stderr
