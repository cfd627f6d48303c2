"""The wheel holds all that its commands need: installed by pip, they run without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import stallwatch

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that this checkout builds."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run what the wheel installs in an environment of its own, which sees the libraries of this one.

    Folders on the path of a ``.pth`` file are searched, but their own ``.pth`` files are not read: so the
    checkout, which is installed in that way, is not found.
    """
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True, timeout=120
    )
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    offline = ["--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
    done = subprocess.run([*pip, *offline], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    (folder / "work").mkdir()
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STALLWATCH"))
    }
    environ |= {"STALLWATCH_HOME": str(folder / "home"), "STALLWATCH_CACHE": str(folder / "cache")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = str(python.with_name(arguments[0]))
        return subprocess.run(
            [program, *arguments[1:]],
            cwd=folder / "work",
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def test_wheel_has_the_current_version(wheel: Path, installed: Run) -> None:
    assert wheel.name.startswith(f"stallwatch-{stallwatch.__version__}-")
    assert installed("stallwatch", "--version").stdout == f"stallwatch {stallwatch.__version__}\n"
    where = installed("python", "-c", "import stallwatch_rules; print(stallwatch_rules.__file__)")
    assert "/venv/lib/" in where.stdout


def test_wheel_contains_every_file_of_the_packages(wheel: Path, root: Path) -> None:
    """Also those that a new folder or kind of file brings."""
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, timeout=60, check=True
    ).stdout.split("\0")
    places = ("", "alerts/", "dashboard/", "exporter/", "lint/", "logs/", "rules/")
    wanted = {
        file.removeprefix(place)
        for file in tracked
        for place in places
        if file.startswith(f"{place}stallwatch") and "/" in file.removeprefix(place)
    }
    assert len(wanted) > 500 and not wanted - names


def test_commands_of_the_wheel_run_without_the_checkout(installed: Run, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "{'loss': 1.5, 'step': 10}\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    found = installed("stallwatch", "diagnose", "--json", str(log))
    assert (json.loads(found.stdout)["primary"]["rule"], found.returncode, found.stderr) == (
        "cuda-oom",
        1,
        "",
    )
    assert "no problems" in installed("stallwatch", "rules", "check").stdout
    exported = installed("stallwatch", "rules", "export", "--prometheus", str(tmp_path / "prometheus"))
    assert exported.returncode == 0 and len(list((tmp_path / "prometheus").glob("*.yml"))) == 3
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 9}}')
    assert "stage" in installed("stallwatch", "check", str(tmp_path / "ds.json")).stdout
    listed = installed("stallwatch", "alerts", "list")  # makes the database
    assert (listed.returncode, listed.stdout) == (0, "") and "Traceback" not in listed.stderr
    ran = installed("stallwatch", "run", "--no-metrics", "--name", "first", "--", "echo", "step 1 loss 1.5")
    assert (ran.returncode, "finished" in installed("stallwatch", "runs").stdout) == (0, True)


def test_demo_of_the_wheel_replays_its_recording(installed: Run) -> None:
    shown = installed("stallwatch", "demo", "--port", "0", "--speed", "16", "--exit-when-done")
    assert shown.returncode == 0, shown.stderr
    assert "rule gloo-collective-timeout" in shown.stdout + shown.stderr


def test_wheel_contains_the_dashboard_pages(installed: Run) -> None:
    drawn = installed(
        "python",
        "-c",
        "import os\n"
        "from streamlit.testing.v1 import AppTest\n"
        "import stallwatch_dashboard\n"
        "from stallwatch_dashboard.settings import DashboardSettings, to_environment\n"
        "from pathlib import Path\n"
        "settings = DashboardSettings(home=Path(os.environ['STALLWATCH_HOME']))\n"
        "os.environ.update(to_environment(settings))\n"
        "file = Path(stallwatch_dashboard.__file__).with_name('app.py')\n"
        "app = AppTest.from_file(str(file), default_timeout=120).run()\n"
        "print(app.exception, stallwatch_dashboard.__file__)",
    )
    assert drawn.stdout.startswith("ElementList() "), drawn.stdout + drawn.stderr[-2000:]
