"""Check whether a rank's process is the process that made its ring."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from stallwatch_exporter.rings.presence import SAME_PROCESS_SECONDS, is_there
from stallwatch_exporter.stacks.local_ranks import local_ranks


def test_process_matches_its_ring_despite_clock_differences() -> None:
    born = psutil.Process().create_time()
    assert is_there(os.getpid(), born)
    assert is_there(os.getpid(), born - SAME_PROCESS_SECONDS + 0.1)
    assert not is_there(os.getpid(), born - SAME_PROCESS_SECONDS - 0.1)


def test_zombies_and_reaped_processes_are_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert is_there(child.pid, time.time())
    child.kill()
    until = time.monotonic() + 120
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert not is_there(child.pid, time.time())
    child.wait()
    assert not is_there(child.pid, time.time())


def test_inaccessible_process_counts_as_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: psutil.Process) -> float:
        raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(psutil.Process, "create_time", denied)
    assert is_there(os.getpid(), 0.0)


@pytest.mark.parametrize(("before", "ended"), [(SAME_PROCESS_SECONDS - 0.5, False), (60.0, True)])
def test_queried_ranks_are_checked_in_the_same_way(tmp_path: Path, before: float, ended: bool) -> None:
    started = psutil.Process().create_time() - before
    (tmp_path / f"0-{os.getpid()}-{int(started * 1e9)}.ring").touch()
    assert bool(local_ranks(tmp_path, None)) is not ended
