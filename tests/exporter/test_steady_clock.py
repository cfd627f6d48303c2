"""Changes of the wall clock during a run make no duration longer or shorter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from optimizer import MADE, put_torch

from stallwatch_exporter import steady
from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.probe.clock import VARIABLE, namespace, steady_offset
from stallwatch_exporter.rings.probing import Probing, with_probe
from stallwatch_exporter.runs.runfolder import RunFolder, agent_alive

# Imported first by the agent and the rank: the wall clocks of both change at the same moment.
CLOCK = """
import os, time
real = time.time
by = float(os.environ["SET_BY"])
def moved():
    return by if os.path.exists("set") else 0.0
time.time = lambda: real() + moved()
time.time_ns = lambda: int(time.time() * 1e9)
try:
    from psutil import _pslinux
except ImportError:
    pass
else:  # the kernel's boot time is moved with the clock
    boot_time = _pslinux.boot_time
    _pslinux.boot_time = lambda: boot_time() + moved()
"""
TRAINING = f"""
import setclock, time
{MADE}
for step in range(1, 13):
    print(f"step {{step}}/1000 loss 0.5", flush=True)
    optimizer.step()
    time.sleep(0.1)
    if step == 6:
        open("set", "w").close()
    time.sleep(0.3)
time.sleep(9)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the boot time is set as Linux does it")
def test_clock_change_under_a_probe_is_not_a_stall(tmp_path: Path) -> None:
    seconds = 7200.0
    put_torch(tmp_path)
    (tmp_path / "setclock.py").write_text(CLOCK)
    (tmp_path / "train.py").write_text(TRAINING)
    environ = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "STALLWATCH_HOME": str(tmp_path / "home"),
        "STALLWATCH_STALL_FLOOR_SECONDS": "4",
        "STALLWATCH_STALL_START_SECONDS": "4",
        "RANK": "0",
        "SET_BY": str(seconds),
    }
    code = "import setclock; from stallwatch.cli import main; main()"
    watch = [sys.executable, "-c", code, "run", "--name", "set", "--port", "0"]
    watch += ["--", sys.executable, "train.py"]
    done = subprocess.run(watch, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "home" / "runs" / "set"
    report = [json.loads(line) for line in (folder / "incidents.jsonl").read_text().splitlines()]
    assert {(item["kind"], item["episode"], item["step"]) for item in report} == {("stall", 1, 12)}
    assert max(item["stalled_seconds"] for item in report) < 30.0
    # For people, times use the wall clock as it was set.
    assert report[0]["opened_at"] == pytest.approx(time.time() + seconds, abs=60.0)
    info = json.loads((folder / "agent.json").read_text())
    assert info["ended_at"] == pytest.approx(time.time() + seconds, abs=60.0)


def test_ranks_use_the_clock_of_their_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = with_probe({}, Path("rings"))
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 7200.0)
    assert time.monotonic() + steady_offset(environ) == pytest.approx(steady.now(), abs=0.5)


@pytest.mark.parametrize("given", ["", "12.5", "12.5@another boot", "much@{here}", "@"])
def test_rank_on_another_host_has_its_own_clock(given: str) -> None:
    offset = steady_offset({VARIABLE: given.format(here=namespace("time"))})
    assert time.monotonic() + offset == pytest.approx(time.time(), abs=0.5)


@pytest.mark.parametrize("seconds", [7200.0, -7200.0])
def test_clock_change_does_not_end_running_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    probe = Probe(tmp_path, {"RANK": "0", **steady.environment()})
    probe.step()
    folder = RunFolder.create("set", ["python"], home=tmp_path / "home", now=steady.now())
    wall, born = time.time, psutil.Process.create_time
    monkeypatch.setattr(time, "time", lambda: wall() + seconds)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: born(self) + seconds)
    probing = Probing(tmp_path)
    assert probing.read() and probing.ranks_up()[0]
    probing.close()
    folder.write_info(updated_at=steady.wall(steady.now()))
    assert agent_alive(folder.info)


def test_monotonic_clock_is_independent_of_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    before, wall = steady.now(), time.time
    assert steady.wall(before) == before
    monkeypatch.setattr(time, "time", lambda: wall() - 3600.0)
    assert 0.0 <= steady.now() - before < 60.0
    assert steady.wall(before) == pytest.approx(before - 3600.0, abs=0.5)


@pytest.mark.parametrize("seconds", [7200.0, -7200.0])
@pytest.mark.parametrize("restarted", [False, True])
def test_incident_keeps_start_and_duration_after_a_clock_change(
    run: Any, monkeypatch: pytest.MonkeyPatch, seconds: float, restarted: bool
) -> None:
    """Chats, acknowledgements and the database identify an incident by its id and its opening time."""
    run.steps(1, 10)
    began = run.now
    run.wait(40)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + seconds)
    if restarted:
        run.end("unknown", None)
        run.restart()
    run.steps(11, 12)
    closed = run.sent[-1]
    assert closed.status == "resolved"
    assert {item.opened_at for item in (*run.sent, *run.kept_incidents)} == {closed.opened_at}
    assert 0.0 < closed.resolved_at - closed.opened_at < run.now - began
    assert [event.at for event in closed.history] == [closed.opened_at, closed.resolved_at]
