"""Run the process that serves the pages: start scraping, then run Streamlit.

`launch` starts this process and holds the other end of its standard input. If that end closes, the starting
process has ended, and this process also exits.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from stallwatch_dashboard.data.source import close_shared, shared
from stallwatch_dashboard.settings import from_environment
from stallwatch_exporter.private import keep_private

_END_SECONDS = 10.0  #: seconds; must exceed the time that the starting process waits before killing it


def main() -> None:
    """Serve the pages until a signal arrives."""
    # Streamlit reads .streamlit/config.toml and secrets.toml in the current folder, which other accounts
    # might be able to write. Therefore, run Streamlit in this package's folder. Streamlit still reads the
    # user's own files in the home directory.
    os.chdir(Path(__file__).parent)
    if not sys.stdin.isatty():
        threading.Thread(target=_end_with_starter, name="starter", daemon=True).start()
    keep_private(from_environment().home)
    shared()
    from streamlit.web.cli import main as streamlit

    from stallwatch_dashboard.connections import bound

    bound()
    sys.argv = ["streamlit", "run", str(Path(__file__).parent / "entry" / "application.py")]
    try:
        streamlit()
    finally:
        close_shared()


def _end_with_starter() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_SECONDS)
    os._exit(128 + signal.SIGTERM)  # this process does not respond, and the starting process has ended
