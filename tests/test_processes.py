"""What tests start ends with them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
from processes import end_all_with, runs
from waiting import wait_until

ORPHAN = """
import subprocess, sys
sleeping, null = [sys.executable, "-c", "import time; time.sleep(600)"], subprocess.DEVNULL
print(subprocess.Popen(sleeping, stdout=null, stderr=null, start_new_session=True).pid)
"""


def test_orphan_in_its_own_session_is_found(tmp_path: Path) -> None:
    def orphan(value: str) -> psutil.Process:
        env = {**os.environ, "STARTED_BY_TEST": value}
        started = subprocess.run([sys.executable, "-c", ORPHAN], env=env, capture_output=True, check=True)
        return psutil.Process(int(started.stdout))

    ours, others = orphan(str(tmp_path)), orphan(str(tmp_path / "other"))
    try:
        end_all_with("STARTED_BY_TEST", str(tmp_path))
        wait_until(lambda: not runs(ours))
        assert runs(others)
    finally:
        end_all_with("STARTED_BY_TEST", str(tmp_path / "other"))
