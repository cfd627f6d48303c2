"""libfaketime moves the wall clock of the real commands: only the hang is a stall."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs the package libfaketime")
# libfaketime 0.9.10 breaks clock_nanosleep(2) of the monotonic clock, which Python's sleep uses.
SLEEP = "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds)\n"
TRAINING = (
    SLEEP
    + """
import pathlib, sys
output, set_to = open(sys.argv[1], "a", buffering=1), sys.argv[2]
runs = pathlib.Path("home/runs/set")
def wait_for(path):
    end = time.monotonic() + 90
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.1)
print("step 0/1000 loss 0.5", file=output)
wait_for(runs / sys.argv[3])  # it is watched
for step in range(1, 13):
    print(f"step {step}/1000 loss 0.5", file=output)
    time.sleep(0.3)
    if step == 6:
        pathlib.Path("clock").write_text(set_to)
    time.sleep(0.3)
wait_for(runs / "incidents.jsonl")  # and hang until that is found
"""
)


@pytest.mark.parametrize(("source", "set_to"), [("run", "-7200"), ("tail", "+7200")])
def test_wall_clock_change_is_not_a_stall(tmp_path: Path, source: str, set_to: str) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "clock").write_text("+0")
    environ = {
        **os.environ,
        "STALLWATCH_HOME": str(tmp_path / "home"),
        "STALLWATCH_STALL_FLOOR_SECONDS": "6",
        "STALLWATCH_STALL_START_SECONDS": "6",
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(tmp_path / "clock"),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    watch = [sys.executable, "-c", f"{SLEEP}from stallwatch.cli import main; main()", source]
    watch += ["--name", "set", "--no-metrics"]
    if source == "run":
        watch += ["--", sys.executable, "train.py", "/dev/stdout", set_to, "agent.json"]
    else:
        (tmp_path / "train.log").touch()
        watch += ["--until-idle", "12", "train.log"]
        training = subprocess.Popen(
            [sys.executable, "train.py", "train.log", set_to, "positions.json"], cwd=tmp_path, env=environ
        )
    done = subprocess.run(watch, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200)
    if source == "tail":
        training.wait(100)
    assert done.returncode == 0, done.stderr
    journal = (tmp_path / "home" / "runs" / "set" / "incidents.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in journal]
    assert {(item["kind"], item["episode"], item["step"]) for item in found} == {("stall", 1, 12)}
    assert all(5.0 < item["stalled_seconds"] < 60.0 for item in found)


def test_wall_clock_is_really_changed(tmp_path: Path) -> None:
    """Without this, the tests above would prove nothing."""
    (tmp_path / "clock").write_text("+7200")
    code = "import time; print(time.time(), time.monotonic())"
    environ = {"LD_PRELOAD": str(LIBRARY), "FAKETIME_TIMESTAMP_FILE": str(tmp_path / "clock")}
    moved, plain = (
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for more in ({**environ, "DONT_FAKE_MONOTONIC": "1"}, {})
    )
    assert float(moved[0]) - float(plain[0]) == pytest.approx(7200, abs=60)
    assert float(moved[1]) - float(plain[1]) == pytest.approx(0, abs=60)
