"""Stacks read from outside by py-spy, where it is installed: for ranks that cannot tell them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from stallwatch_rules.stacks.reading import from_py_spy
from stallwatch_rules.stacks.records import ThreadStack


def find_py_spy() -> str | None:
    """Where py-spy is: beside the Python that we run on, or on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def spied(program: str, pid: int, patience: float) -> tuple[ThreadStack, ...]:
    """The threads of a process; none where py-spy may not read it, as the system's rules for ptrace say."""
    # Not blocking: by default py-spy stops the process while it reads.
    command = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return from_py_spy(done.stdout) if done.returncode == 0 else ()
