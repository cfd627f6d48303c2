"""Measure how long a real browser needs until a page is usable, for ``bench/dashboard.py``.

A page is usable when its table (Runs) or its first chart (Run) is drawn and its controls accept input. For
Run, the benchmark also prints the time until the verdict and the figures appear, because they come before the
charts. All these times are elapsed times. Next to them, the benchmark prints the processor time of the server
and the browser, which depends less on other load. Visits to bare pages of Streamlit alternate with visits to
the dashboard's pages, because no page of the dashboard can be faster than a bare page.

The browser has a profile on disk, as users' browsers have. If it has a profile, Chromium keeps compiled
scripts for the second and later visits. By default, Playwright opens windows without a profile, in which
Chromium does not keep compiled scripts.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dashboard_floor
import psutil

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_PATIENCE_MS = 120_000
_AGAIN = 9  #: number of repeated visits; the median of their times is printed
_LEAVE_MS = 500  #: pause after a page is usable, during which Chromium stores its scripts

_TABLE = """() => [...document.querySelectorAll('.stMain tbody :is(td, th)')]
    .some(cell => cell.textContent.includes('run-'))
    && !!document.querySelector('.stMain input:enabled')"""
_VERDICT = """() => !!document.querySelector('[class*="st-key-verdict-"] h3')
    && !!document.querySelector('[data-testid="stMetricValue"]')"""
_CONTROLS = """() => !!document.querySelector('[data-testid="stSelectbox"] input:enabled')"""


@dataclass
class Visited:
    """A page that is visited several times."""

    title: str
    address: str
    ready: Callable[[Any], None]
    server: psutil.Process
    made: list[tuple[float, float, float]] = field(default_factory=list)

    def report(self) -> None:
        """Print the times for the first visit and for the later visits."""
        first, later = self.made[0], [statistics.median(item) for item in zip(*self.made[1:], strict=True)]
        for when, (clock, server, browser) in (("first visit", first), ("later visits", later)):
            used = f"server {1000 * server:.0f} ms, Chromium {1000 * browser:.0f} ms"
            print(f"  {f'{self.title} in Chromium, {when}':50} {1000 * clock:8,.0f} ms ({used})")


def visits(home: Path, name: str, **variables: str) -> None:
    """Print how long a browser needs for both pages of the dashboard and for two bare pages.

    The output shows the first visit and the later visits separately.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("  Playwright is not installed, so nothing is measured in a browser")
        return
    if CHROMIUM is None:
        print("  Chromium is not installed, so nothing is measured in a browser")
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stallwatch-bench-")))
        url, child = stack.enter_context(_serving(home, variables))
        server = psutil.Process(child.pid)
        pages = [
            Visited("Runs page", url, _runs_ready, server),
            Visited("Run page's verdict", f"{url}/run?run={name}", _verdict_ready, server),
            Visited("Run page", f"{url}/run?run={name}", _run_ready, server),
        ]
        for (title, script), ready in zip(
            dashboard_floor.PAGES.items(), (_runs_ready, _bare_chart_ready), strict=True
        ):
            (folder / title).mkdir()
            address, bare = stack.enter_context(dashboard_floor.bare(script, folder / title))
            pages.append(Visited(title, address, ready, psutil.Process(bare.pid)))
        playwright = stack.enter_context(sync_playwright())
        context = playwright.chromium.launch_persistent_context(
            folder / "profile",
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            viewport={"width": 1440, "height": 900},
        )
        for _ in range(_AGAIN + 1):
            for page in pages:
                page.made.append(_visit(context, page))
        context.close()
    for page in pages:
        page.report()


def _visit(context: Any, visited: Visited) -> tuple[float, float, float]:
    """Visit a page.

    Return three durations in seconds: the time until the page is usable, and the processor time of the server
    and of the browser.
    """
    page = context.new_page()
    page.set_default_timeout(_PATIENCE_MS)
    before = _used(visited.server)
    began = time.perf_counter()
    page.goto(visited.address, wait_until="commit")
    visited.ready(page)
    took = time.perf_counter() - began
    after = _used(visited.server)
    # Ignore processes that ended during the visit, because they worked for the previous page.
    server, browser = (
        sum(seconds - early.get(pid, 0.0) for pid, seconds in late.items())
        for early, late in zip(before, after, strict=True)
    )
    page.wait_for_timeout(_LEAVE_MS)
    page.close()
    return took, server, browser


def _used(server: psutil.Process) -> tuple[dict[int, float], dict[int, float]]:
    """For the server and for Chromium, return the processor time of each process, in seconds."""
    by_process: tuple[dict[int, float], dict[int, float]] = ({}, {})
    ours = [server, *server.children(recursive=True)]
    chromium = [child for child in psutil.Process().children(recursive=True) if child not in ours]
    for seconds, processes in zip(by_process, (ours, chromium), strict=True):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                if seconds is by_process[0] or "chrom" in process.name():
                    seconds[process.pid] = sum(process.cpu_times()[:2])
    return by_process


def _runs_ready(page: Any) -> None:
    page.wait_for_function(_TABLE)


def _bare_chart_ready(page: Any) -> None:
    page.wait_for_function("() => !!document.querySelector('.js-plotly-plot .xtick')")
    page.wait_for_function(_CONTROLS)


def _verdict_ready(page: Any) -> None:
    page.wait_for_function(_VERDICT)
    page.wait_for_function(_CONTROLS)


def _run_ready(page: Any) -> None:
    page.frame_locator("iframe[title*='board']").locator(".js-plotly-plot .xtick").first.wait_for(
        state="attached"
    )
    page.wait_for_function(_CONTROLS)


@contextlib.contextmanager
def _serving(home: Path, variables: dict[str, str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start the real dashboard with this state folder. Yield its address and its process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("STALLWATCH_")}
    env |= {"STALLWATCH_HOME": str(home), "STALLWATCH_CONFIG": os.devnull, **variables}
    words = [sys.executable, "-c", "from stallwatch.cli import main; main()", "dashboard", "--port", "0"]
    child = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr is not None
        line = child.stderr.readline()
        match = re.search(r"dashboard on (http://\S+)", line)
        if match is None:
            raise RuntimeError(line or "the dashboard did not start")
        yield match[1], child
    finally:
        child.terminate()
        child.communicate(timeout=60)
