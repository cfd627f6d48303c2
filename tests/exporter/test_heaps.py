"""Addresses that the agent's process reserves for its heap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import re, sys, threading
from pathlib import Path
from stallwatch_exporter.malloc_arenas import limit_malloc_arenas

def size():
    return int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

if sys.argv[1] == "shared":
    limit_malloc_arenas()
threading.stack_size(1 << 20)
before, ready, end = size(), threading.Barrier(9), threading.Event()

def work():
    kept = [bytes(1000) for _ in range(1000)]
    ready.wait()
    end.wait()

for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
ready.wait()
print(size() - before)
end.set()
"""


def _megabytes_of_eight_threads(how: str) -> int:
    environ = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    command = [sys.executable, "-c", _PROGRAM, how]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return int(done.stdout)


def _has_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (AttributeError, OSError, ValueError):
        return False


@pytest.mark.skipif(
    not _has_glibc() or not Path("/proc/self/status").exists(), reason="only glibc gives threads own heaps"
)
def test_threads_share_heaps() -> None:
    assert _megabytes_of_eight_threads("shared") < _megabytes_of_eight_threads("own") - 4 * 64


@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems do not enforce a limit of the address space"
)
@pytest.mark.parametrize("megabytes", [64, 80, 100, 116])
def test_command_runs_unwatched_in_a_small_address_space(megabytes: int, tmp_path: Path) -> None:
    """With 80 MB, the first thread once hung; with 100 and 116 MB, a library aborted the agent."""
    limited = (
        f"ulimit -v {megabytes * 1024}; exec {sys.executable} -m stallwatch run --no-metrics -- echo trained"
    )
    environ = {**os.environ, "STALLWATCH_HOME": str(tmp_path), "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(
        ["sh", "-c", limited], env=environ, capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "less than 128 MB of address space is left" in done.stderr
