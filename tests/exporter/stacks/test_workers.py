"""The worker of a data loader that runs user code is found, with its stack."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stallwatch_exporter.stacks.queries import busy_worker, find_py_spy

TORCH = """
import time

def _worker_loop(call):
    call() if call else time.sleep(120)
"""
TRAIN = """
import os, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "site-packages"))
from loader import _worker_loop

def fetch():
    print(os.getpid(), flush=True)
    time.sleep(120)

for call in (None, fetch):
    if os.fork() == 0:
        _worker_loop(call)
time.sleep(120)
"""


@pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")
def test_worker_in_user_code_is_found(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "loader.py").write_text(TORCH)
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    rank = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert rank.stdout is not None
        said = rank.stdout.readline().strip()
        worker, frames = busy_worker(rank.pid, 30.0)
        assert str(worker) == said
        assert [frame.function for frame in frames] == ["_worker_loop", "fetch"]
        assert busy_worker(worker or 0, 30.0) == (None, ())
    finally:
        os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()
