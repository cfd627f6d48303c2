"""What guards all tests must itself be able to fail a run: silent skips, and a user's own configuration."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from lanes import SLOW_FILES, lane_of, turn

SKIPPING = "import pytest\n\ndef test_a():\n    pytest.skip('because')\n\ndef test_b():\n    assert True\n"
SHARING = """
import os, pytest
@pytest.fixture(scope="module")
def seen():
    return {name: value for name, value in os.environ.items() if name.startswith(("STALLWATCH_", "XDG_"))}
def test_what_a_shared_fixture_sees(seen):
    assert set(seen) == {"STALLWATCH_HOME", "STALLWATCH_CACHE", "XDG_CONFIG_HOME"}
    assert not any("of-the-user" in value for value in seen.values())
"""


@pytest.mark.parametrize(("ci", "allowed", "code"), [("", "", 0), ("1", "", 1), ("1", "test_a  known\n", 0)])
def test_unexpected_skip_fails_a_ci_run(tmp_path: Path, root: Path, ci: str, allowed: str, code: int) -> None:
    (tmp_path / "conftest.py").write_text((root / "tests/conftest.py").read_text())
    (tmp_path / "allowed_skips.txt").write_text(allowed)
    (tmp_path / "test_it.py").write_text(SKIPPING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    env = {"PATH": "/usr/bin:/bin", "CI": ci, "HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr


TRIED = """
import time, pytest
made, tries = [], []

@pytest.fixture(scope="module")
def shared():
    made.append(1)
    return made

def test_never(shared):
    tries.append("never")
    assert False, f"wrong at try {tries.count('never')}"

def test_at_last(shared):
    tries.append("at last")
    assert tries.count("at last") == 2, "wrong at the first try"

@pytest.mark.timeout(1)
def test_slow():
    tries.append("slow")
    time.sleep(60)

def test_each_was_tried_twice_with_one_shared_fixture(shared):
    assert (made, sorted(tries)) == ([1], ["at last"] * 2 + ["never"] * 2 + ["slow"] * 2)
"""
PURE = """
tries = []
def test_pure():
    tries.append(1)
    assert len(tries) == 2
"""


def section(printed: str, title: str) -> list[str]:
    """The lines under this title."""
    return re.split(r"\n=+ ", printed.partition(title)[2])[0].splitlines()[1:]


def test_second_tries_in_ci_are_reported_and_two_failures_fail(tmp_path: Path, root: Path) -> None:
    pytest.importorskip("pytest_rerunfailures")
    (tmp_path / "conftest.py").write_text((root / "tests/conftest.py").read_text())
    (tmp_path / "allowed_skips.txt").write_text("")
    (tmp_path / "rules").mkdir()
    (tmp_path / "test_it.py").write_text(TRIED)
    (tmp_path / "rules" / "test_pure.py").write_text(PURE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    env = {"PATH": "/usr/bin:/bin", "CI": "1", "HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "3 failed, 2 passed, 3 rerun" in done.stdout, done.stdout + done.stderr
    output = section(done.stdout, "passed only when tried again: mend them")
    assert output[0] == "test_it.py::test_at_last" and "wrong at the first try" in "".join(output)
    assert "test_it.py::test_never" not in output
    twice = section(done.stdout, "failed twice: how the first try ended")
    assert twice[0] == "test_it.py::test_never" and "wrong at try 1" in "".join(twice)
    assert "test_it.py::test_at_last" not in twice
    (tmp_path / "test_it.py").write_text("def test_well(): pass\n")
    (tmp_path / "rules" / "test_pure.py").unlink()
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "tried again" not in done.stdout


WAITING = """
import os, pytest
def test_alone(record_property):
    record_property("process", os.getpid())
"""
COMPUTING = """
import os, pytest
tries = []
def test_at_last():
    tries.append(1)
    assert len(tries) == 2, "wrong at the first try"
@pytest.mark.parametrize("number", range(8))
def test_one_of_many(record_property, number):
    record_property("process", os.getpid())
"""


def test_lanes_report_the_same(tmp_path: Path, root: Path) -> None:
    """As ``make test`` runs them: a file that is skipped, a second try; all of a lane is in one process."""
    pytest.importorskip("pytest_rerunfailures")
    pytest.importorskip("xdist")
    (tmp_path / "machine").mkdir()
    (tmp_path / "browser").mkdir()
    for copied in ("conftest.py", "machine/lanes.py"):
        (tmp_path / copied).write_text((root / "tests" / copied).read_text())
    (tmp_path / "allowed_skips.txt").write_text("test_known  is not here\n")
    (tmp_path / "test_known.py").write_text("import pytest\npytest.skip(allow_module_level=True)\n")
    (tmp_path / "browser" / "test_waits.py").write_text(WAITING)
    (tmp_path / "test_it.py").write_text(COMPUTING)
    command = [sys.executable, "-m", "pytest", "-n", "2", "--junitxml=told.xml", "-p", "no:cacheprovider"]
    env = {"PATH": "/usr/bin:/bin", "CI": "1", "HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, str(tmp_path)], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 passed" in done.stdout and "1 rerun" in done.stdout
    output = done.stdout.partition("passed only when tried again: mend them")[2]
    assert "test_it.py::test_at_last" in output and "wrong at the first try" in output
    cases = ElementTree.parse(tmp_path / "told.xml").iter("testcase")
    processes = [(case.get("name"), item.get("value")) for case in cases for item in case.iter("property")]
    waiting = {process for name, process in processes if name == "test_alone"}
    computing = {process for name, process in processes if name != "test_alone"}
    assert (len(processes), len(waiting), len(computing), waiting & computing) == (9, 1, 1, set())
    (tmp_path / "allowed_skips.txt").write_text("")
    done = subprocess.run(
        [*command, str(tmp_path)], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "does not name" in done.stdout and "test_known.py" in done.stdout


@pytest.mark.parametrize(
    ("test", "lane", "at"),
    [
        ("tests/repro/hangs/test_hangs.py::test_a", "trainings", 0),
        ("tests/browser/test_login.py::test_a[b/c]", "browser", 0),
        ("tests/acceptance/test_routes.py::test_a", "acceptance", 0),
        ("tests/cluster/test_hosts.py::test_a", "acceptance", 0),
        ("tests/bench/test_live.py::test_a", "tests/bench/test_live.py", 1),
        ("tests/repro/test_versions.py::test_a", "tests/repro/test_versions.py", 2),
        ("tests/rules/pages/test_pages.py::test_a[browser/x]", "tests/rules/pages/test_pages.py", 2),
    ],
)
def test_tests_with_browsers_or_trainings_do_not_run_in_parallel(test: str, lane: str, at: int) -> None:
    assert (lane_of(test), turn(test)) == (lane, at)


def test_slow_files_are_there(root: Path) -> None:
    assert [name for name in SLOW_FILES if not (root / "tests" / name).is_file()] == []


def test_fixtures_that_tests_share_see_nothing_of_the_user(tmp_path: Path, root: Path) -> None:
    (tmp_path / "conftest.py").write_text((root / "tests/conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(SHARING)
    of_user = ("STALLWATCH_HOME", "STALLWATCH_ALERTS_URLS", "STALLWATCH_CONFIG", "XDG_CONFIG_HOME")
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **dict.fromkeys(of_user, "/of-the-user")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
