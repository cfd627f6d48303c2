"""Dashboards that serve their pages, started as by the command line."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import psutil
from ports import free_port

from stallwatch_dashboard.settings import DashboardSettings, to_environment

_SERVE = """
import sys
from stallwatch_dashboard.launch import serve
from stallwatch_dashboard.settings import from_environment
sys.exit(serve(from_environment()))
"""


@contextlib.contextmanager
def served(settings: DashboardSettings, first: str = "") -> Iterator[tuple[int, list[bytes]]]:
    """Start a dashboard after the code `first`; yield its port and its output, complete at its end."""
    port = free_port()
    starter = subprocess.Popen(
        [sys.executable, "-c", first + _SERVE],
        env={**os.environ, **to_environment(replace(settings, port=port))},
        stderr=subprocess.PIPE,
    )
    assert starter.stderr is not None
    lines: list[bytes] = []
    reader = threading.Thread(target=lines.extend, args=(starter.stderr,))
    family: list[psutil.Process] = []
    try:
        assert b"dashboard on http://127.0.0.1" in starter.stderr.readline()
        family = psutil.Process(starter.pid).children(recursive=True)
        reader.start()
        yield port, lines
    finally:
        starter.kill()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        starter.wait()
        if family:
            reader.join()
        starter.stderr.close()
