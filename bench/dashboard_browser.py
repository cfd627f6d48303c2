"""From the address to a page that can be used, in a real browser, for ``bench/dashboard.py``.

A page is there when its table (Runs) or its first chart (Run) is drawn and its controls take input; of Run it
is reported, too, when its verdict and figures are there, which come before the charts. By the clock; the
processor time of server and browser, which a busy machine changes less, is shown beside it. Bare pages of
Streamlit's are visited in turns with ours: the floor that no page of ours can go below.

The browser has a profile on disk, as its users have: Chromium keeps a script in compiled form from the second
visit on, but not in the windows without a profile that Playwright opens by default.
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
_AGAIN = 9  #: visits whose median is reported
_LEAVE_MS = 500  #: after a page is there, so that it ends what it still does, and Chromium keeps its scripts

_TABLE = """() => [...document.querySelectorAll('.stMain tbody :is(td, th)')]
    .some(cell => cell.textContent.includes('run-'))
    && !!document.querySelector('.stMain input:enabled')"""
_VERDICT = """() => !!document.querySelector('[class*="st-key-verdict-"] h3')
    && !!document.querySelector('[data-testid="stMetricValue"]')"""
_CONTROLS = """() => !!document.querySelector('[data-testid="stSelectbox"] input:enabled')"""


@dataclass
class Visited:
    """A page that is visited again and again."""

    title: str
    address: str
    ready: Callable[[Any], None]
    server: psutil.Process
    made: list[tuple[float, float, float]] = field(default_factory=list)

    def tell(self) -> None:
        """Print what the first visit and the later ones took."""
        first, later = self.made[0], [statistics.median(one) for one in zip(*self.made[1:], strict=True)]
        for when, (clock, server, own) in (("first visit", first), ("later visits", later)):
            used = f"server {1000 * server:.0f} ms, Chromium {1000 * own:.0f} ms"
            print(f"  {f'{self.title} in Chromium, {when}':50} {1000 * clock:8,.0f} ms ({used})")


def visits(home: Path, name: str, **variables: str) -> None:
    """Print how long both pages, and two bare ones, take a browser's first visit, and later ones."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("  no playwright here: nothing is told of a browser")
        return
    if CHROMIUM is None:
        print("  no chromium here: nothing is told of a browser")
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
        page.tell()


def _visit(context: Any, visited: Visited) -> tuple[float, float, float]:
    """Seconds from the address to a page that can be used; the processor's, of server and browser."""
    page = context.new_page()
    page.set_default_timeout(_PATIENCE_MS)
    before = _used(visited.server)
    began = time.perf_counter()
    page.goto(visited.address, wait_until="commit")
    visited.ready(page)
    took = time.perf_counter() - began
    after = _used(visited.server)
    # What ended meanwhile showed the page before.
    server, browser = (
        sum(seconds - early.get(pid, 0.0) for pid, seconds in late.items())
        for early, late in zip(before, after, strict=True)
    )
    page.wait_for_timeout(_LEAVE_MS)
    page.close()
    return took, server, browser


def _used(server: psutil.Process) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds of the processor so far, by process: of the server's, and of Chromium's."""
    told: tuple[dict[int, float], dict[int, float]] = ({}, {})
    ours = [server, *server.children(recursive=True)]
    chromium = [one for one in psutil.Process().children(recursive=True) if one not in ours]
    for seconds, processes in zip(told, (ours, chromium), strict=True):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                if seconds is told[0] or "chrom" in process.name():
                    seconds[process.pid] = sum(process.cpu_times()[:2])
    return told


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
    """The real dashboard on this state folder: the address that it prints, and its process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("STALLWATCH_")}
    env |= {"STALLWATCH_HOME": str(home), "STALLWATCH_CONFIG": os.devnull, **variables}
    words = [sys.executable, "-c", "from stallwatch.cli import main; main()", "dashboard", "--port", "0"]
    child = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr is not None
        line = child.stderr.readline()
        told = re.search(r"dashboard on (http://\S+)", line)
        if told is None:
            raise RuntimeError(line or "the dashboard did not start")
        yield told[1], child
    finally:
        child.terminate()
        child.communicate(timeout=60)
