"""Serve bare Streamlit pages with a table and a chart, as a baseline for ``bench/dashboard_browser.py``.

An optimization of the dashboard can save only the time that exceeds the time of these pages.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from machine import free_port

PAGES = {
    "a bare page with a table": """
import streamlit as st

st.set_page_config(layout="wide")
st.title("Bare")
st.text_input("Find")
rows = "".join(f"<tr><td>run-{n:03}</td><td>{n}</td></tr>" for n in range(200))
st.html(f"<table><tbody>{rows}</tbody></table>")
""",
    "a bare page with a chart": """
import streamlit as st

st.set_page_config(layout="wide")
st.title("Bare")
st.selectbox("Run", ["run-000", "run-001"])
line = {"type": "scatter", "x": list(range(400)), "y": list(range(400))}
st.plotly_chart({"data": [line], "layout": {}})
""",
}
_OPTIONS = ("--server.headless=true", "--browser.gatherUsageStats=false", "--server.fileWatcherType=none")
_START_SECONDS, _TRIES = 60.0, 3


@contextlib.contextmanager
def bare(script: str, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start Streamlit with only this script. Yield its address and its process."""
    file = folder / "bare.py"
    file.write_text(script)
    for _ in range(_TRIES):
        port = free_port()
        words = [sys.executable, "-m", "streamlit", "run", str(file), *_OPTIONS]
        child = subprocess.Popen(
            [*words, "--server.address=127.0.0.1", f"--server.port={port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            if _answers(child, port):  # otherwise, a different process uses the port
                yield f"http://127.0.0.1:{port}", child
                return
        finally:
            child.terminate()
            child.wait(60)
    raise RuntimeError("Streamlit did not start")


def _answers(child: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while child.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=5).close()
            return True
        time.sleep(0.1)
    return False
