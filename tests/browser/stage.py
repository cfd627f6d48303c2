"""A run under the real ``stallwatch run``, the real dashboard, and Chromium in front of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from playwright.sync_api import Browser, Frame, Page, ViewportSize, sync_playwright
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
RECORDING = ROOT / "tests" / "recordings" / "zero3-stall"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SIZE: ViewportSize = {"width": 1280, "height": 800}
_CLICKS = 8
_STALLWATCH = [sys.executable, "-c", "from stallwatch.cli import main; main()"]
_CHROMIUM_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP *.rebound.example 127.0.0.1",  # an attacker's host names after DNS rebinding
)


def replayed(speed: float, folder: Path = RECORDING) -> list[str]:
    """Return the command that prints the recorded run; Stallwatch does not sample its stack."""
    return [str(Path(sys.executable).with_name("stallwatch")), "replay", str(folder), "--speed", str(speed)]


class Stage:
    """Starts real processes that share one state folder, and stops them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """Base URL of the dashboard's pages."""
        return f"http://127.0.0.1:{self.port}"

    def dashboard(self, *, port: int | None = None, **variables: str) -> subprocess.Popen[bytes]:
        """Start ``stallwatch dashboard`` with more variables, and wait until it answers."""
        return self.answering(self.beginning(port or self.port, **variables))

    def beginning(self, port: int, **variables: str) -> subprocess.Popen[bytes]:
        """Start a dashboard, and return before it answers."""
        return self.start([*_STALLWATCH, "dashboard", "--port", str(port)], variables, stderr=subprocess.PIPE)

    def answering(self, child: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """Wait until the dashboard prints that it is ready."""
        assert child.stderr is not None
        line = child.stderr.readline().decode()
        assert "dashboard on" in line, line
        return child

    def run(
        self, name: str, command: Sequence[str], *, floor: float, port: int = 0
    ) -> subprocess.Popen[bytes]:
        """Start ``stallwatch run -- command`` with a stall threshold of at least `floor` seconds."""
        words = [*_STALLWATCH, "run", "--name", name, "--port", str(port), "--", *command]
        return self.start(words, {"STALLWATCH_STALL_FLOOR_SECONDS": str(floor)})

    def close(self) -> None:
        """Stop the remaining processes with Ctrl-C, as a person would."""
        for child in self._children:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
        for child in self._children:
            try:
                child.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.communicate(timeout=120)  # child processes may keep its standard error open

    def start(
        self, words: Sequence[str], extra: dict[str, str] | None = None, stderr: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start a process that the stage stops at its end."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("STALLWATCH_")}
        env |= {"STALLWATCH_HOME": str(self.home), "STALLWATCH_CONFIG": os.devnull, **(extra or {})}
        child = subprocess.Popen(
            list(words),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
        self._children.append(child)
        return child


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Yield Debian's Chromium under Playwright."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_CHROMIUM_OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


def choose_row(page: Page, address: str, row: int = 0, *, search: str = "") -> None:
    """Tick the box of a row of the page's table until the page changes to `address`.

    The table is drawn on a canvas, which ignores a click while it is redrawn.
    """
    if search:
        field = page.get_by_test_id("stTextInput").locator("input").first
        field.fill(search)
        field.press("Enter")
        page.wait_for_url(f"**q={search.replace(' ', '+')}*")
    table = page.get_by_test_id("stDataFrame").first
    for _ in range(_CLICKS):
        table.wait_for()
        box = table.bounding_box()
        if box is not None:
            page.mouse.click(box["x"] + 16, box["y"] + 52 + 35 * row)
        with contextlib.suppress(PlaywrightTimeout):
            page.wait_for_url(address, timeout=8_000)
            return
    raise AssertionError(f"no click on the table led to {address}; this is {page.url}")


def choose_run(page: Page, run: str, *, search: str = "") -> None:
    """Click on the row of this run in the table of runs."""
    if search:
        field = page.get_by_role("searchbox")
        field.fill(search)
        field.press("Enter")
        page.wait_for_url(f"**q={search.replace(' ', '+')}*")
    page.locator(".runs tbody tr", has=page.get_by_role("link", name=run, exact=True)).click()
    page.wait_for_url(f"**/run?run={run}")


def open_mark(page: Page, text: str) -> None:
    """Click on the name above an incident's band in the charts until its page opens.

    Plotly redraws the name at every refresh, so a click may hit a removed element.
    """
    mark = board(page).locator(".annotation-text-g", has_text=text).first
    for _ in range(_CLICKS):
        with contextlib.suppress(PlaywrightError):  # the mark may be redrawn at the same time
            mark.scroll_into_view_if_needed(timeout=8_000)  # the charts are higher than the window
        with contextlib.suppress(PlaywrightTimeout):
            if (box := mark.bounding_box(timeout=8_000)) is not None:
                page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            page.wait_for_url("**/incidents?incident=*", timeout=8_000)
            return
    raise AssertionError(f"no click on {text} opened an incident; this is {page.url}")


def board(page: Page, charts: int = 2) -> Frame:
    """Return the frame that holds the charts after it has drawn `charts` of them."""
    page.locator("iframe[title*='board']").wait_for()
    frame = next(frame for frame in page.frames if "pages.board.board" in frame.url)
    frame.wait_for_function(
        "n => document.querySelectorAll('.js-plotly-plot .xtick').length && "
        "document.querySelectorAll('.js-plotly-plot').length >= n",
        arg=charts,
        timeout=90_000,
    )
    return frame
