"""From the address to a page that can be used, in a real browser, for ``bench/dashboard.py``.

A page is there when its table (Runs) or its first chart (Run) is drawn and its controls take input. By the
clock; the processor time of server and browser, which a busy machine changes less, stands beside it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_PATIENCE_MS = 120_000
_AGAIN = 7  #: visits whose median is told

#: The table is drawn on a canvas; what a screen reader finds in that tells that its rows are there.
_TABLE = """() => [...document.querySelectorAll('[data-testid="stDataFrame"] [role="gridcell"]')]
    .some(cell => cell.textContent.includes('run-'))
    && !!document.querySelector('[data-testid="stTextInput"] input:enabled')"""
_CONTROLS = """() => !!document.querySelector('[data-testid="stSelectbox"] input:enabled')"""


def visits(home: Path, name: str, **variables: str) -> None:
    """Print how long both pages take a browser's first visit, and later ones."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("  no playwright here: nothing is told of a browser")
        return
    if CHROMIUM is None:
        print("  no chromium here: nothing is told of a browser")
        return
    with _serving(home, variables) as url, sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        for title, address, ready in (
            ("Runs page", url, _runs_ready),
            ("Run page", f"{url}/run?run={name}", _run_ready),
        ):
            made = [_visit(context, address, ready) for _ in range(1 + _AGAIN)]
            first = [1000 * number for number in made[0]]
            later = [1000 * statistics.median(numbers) for numbers in zip(*made[1:], strict=True)]
            for when, (clock, server, own) in (("first visit", first), ("later visits", later)):
                used = f"server {server:.0f} ms, Chromium {own:.0f} ms"
                print(f"  {f'{title} in Chromium, {when}':36} {clock:8,.0f} ms ({used})")
        browser.close()


def _visit(context: Any, address: str, ready: Any) -> tuple[float, float, float]:
    """Seconds from the address to a page that can be used; the processor's, of server and browser."""
    page = context.new_page()
    page.set_default_timeout(_PATIENCE_MS)
    before = _used()
    began = time.perf_counter()
    page.goto(address, wait_until="commit")
    ready(page)
    took = time.perf_counter() - began
    server, browser = (late - early for early, late in zip(before, _used(), strict=True))
    page.close()
    return took, server, browser


def _used() -> tuple[float, float]:
    """Seconds of the processor so far: of the dashboard's processes, and of Chromium's."""
    server = browser = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            seconds = sum(process.cpu_times()[:2])
            if "chrom" in process.name():
                browser += seconds
            elif "stallwatch_dashboard" in " ".join(process.cmdline()):
                server += seconds
    return server, browser


def _runs_ready(page: Any) -> None:
    page.wait_for_function(_TABLE)


def _run_ready(page: Any) -> None:
    page.frame_locator("iframe[title*='board']").locator(".js-plotly-plot .xtick").first.wait_for(
        state="attached"
    )
    page.wait_for_function(_CONTROLS)


@contextlib.contextmanager
def _serving(home: Path, variables: dict[str, str]) -> Iterator[str]:
    """The real dashboard on this state folder; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {name: value for name, value in os.environ.items() if not name.startswith("STALLWATCH_")}
    env |= {"STALLWATCH_HOME": str(home), "STALLWATCH_CONFIG": os.devnull, **variables}
    words = [sys.executable, "-c", "from stallwatch.cli import main; main()"]
    words += ["dashboard", "--port", str(port)]
    child = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr is not None
        line = child.stderr.readline()
        if "dashboard on" not in line:
            raise RuntimeError(line or "the dashboard did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.communicate(timeout=60)
