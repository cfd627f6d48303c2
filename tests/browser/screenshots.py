"""Take the pictures in docs/images from a replay of the recorded run: ``make screenshots``."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from playwright.sync_api import Browser, Page
from scene import printed
from stage import RECORDING, ROOT, SIZE, Stage, board, chromium, open_mark, replayed

IMAGES = ROOT / "docs" / "images"
SPEED = 4.0
FLOOR = 5.0
_SETTLE_MS = 1500  # time for a chart's fonts and the last redraw
_PATIENCE_MS = 180_000
_MARGIN = 16
_HEIGHTS = {"incident": 724}  #: height in pixels; below it are stacks with paths of this machine
_END_OF_THE_HANG = "2026-11-28T16:19"  #: time in the recording, after a minute of the hang


def _run(page: Page, url: str) -> None:
    page.goto(f"{url}/run?run=llama-3b-grpo")
    board(page)


def _runs(page: Page, url: str) -> None:
    page.goto(f"{url}/")
    page.get_by_text("To open a").wait_for()


def _incidents(page: Page, url: str) -> None:
    page.goto(f"{url}/incidents")
    page.get_by_text("To open a").wait_for()


def _incident(page: Page, url: str) -> None:
    _run(page, url)
    open_mark(page, "stall")
    page.get_by_text("Timeline").wait_for()


def _postmortem(page: Page, url: str) -> None:
    page.goto(f"{url}/postmortem")
    page.locator("input[type=file]").set_input_files(sorted((RECORDING / "ranks").glob("*.log")))
    page.get_by_role("heading", name="Failed").wait_for()


def _rules(page: Page, url: str) -> None:
    page.goto(f"{url}/rules?rule=zero3-trace-cache-invalidated")
    page.locator(".st-key-rule-page").get_by_text("What happened").wait_for()


def _health(page: Page, url: str) -> None:
    page.goto(f"{url}/health")
    page.get_by_text("duckdb").first.wait_for()


def _run_chinese(page: Page, url: str) -> None:
    page.goto(f"{url}/run?run=llama-3b-grpo&lang=zh")
    board(page)


def _postmortem_chinese(page: Page, url: str) -> None:
    page.goto(f"{url}/postmortem?lang=zh")
    page.locator("input[type=file]").set_input_files(sorted((RECORDING / "ranks").glob("*.log")))
    page.get_by_role("heading", name="失败").wait_for()


PICTURES: dict[str, tuple[Callable[[Page, str], None], str]] = {
    "run": (_run, "light"),
    "run-dark": (_run, "dark"),
    "run-zh": (_run_chinese, "light"),
    "runs": (_runs, "light"),
    "incident": (_incident, "light"),
    "incidents": (_incidents, "light"),
    "postmortem": (_postmortem, "light"),
    "postmortem-zh": (_postmortem_chinese, "light"),
    "rules": (_rules, "light"),
    "health": (_health, "light"),
}


def take(images: Path, names: Iterable[str] = PICTURES, speed: float = SPEED) -> list[Path]:
    """Write the named pictures into `images`, and return their paths."""
    images.mkdir(parents=True, exist_ok=True)
    taken = []
    with tempfile.TemporaryDirectory(prefix="stallwatch-screenshots-") as home, chromium() as browser:
        stage = Stage(Path(home))
        try:
            stage.dashboard(STALLWATCH_ALERTS_URLS="slack://TokenA/TokenB/TokenC/#training")
            stage.run("mistral-7b-ppo", printed("zero3-save-unwrapped-model", 1), floor=FLOOR)
            stage.run("llama-1b-sft", printed("healthy", 0), floor=FLOOR)
            stage.run("llama-3b-grpo", _hanging(Path(home) / "recording", speed), floor=FLOOR)
            stage.run("qwen-7b-sft", [sys.executable, "-u", "-c", _HEALTHY], floor=60.0)
            _wait_for_the_stall(browser, stage.url)
            for name in names:
                go, scheme = PICTURES[name]
                taken.append(_picture(browser, stage.url, images / f"{name}.png", go, scheme))
        finally:
            stage.close()
    return taken


def _hanging(folder: Path, speed: float) -> list[str]:
    """Return a command that prints the recorded run up to its hang, and then hangs until it is ended.

    So the pictures do not depend on the speed of this machine.
    """
    shutil.copytree(RECORDING, folder)
    for log in folder.rglob("*.log"):
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(line for line in lines if line < _END_OF_THE_HANG))
    return ["sh", "-c", '"$@"; sleep 3600', "sh", *replayed(speed, folder)]


def _wait_for_the_stall(browser: Browser, url: str) -> None:
    page = browser.new_page()
    page.goto(f"{url}/run?run=llama-3b-grpo")
    page.get_by_role("heading", name="Stalled").wait_for(timeout=_PATIENCE_MS)
    page.close()


def _picture(browser: Browser, url: str, path: Path, go: Callable[[Page, str], None], scheme: str) -> Path:
    page = browser.new_page(viewport=SIZE, color_scheme=scheme, timezone_id="UTC")  # type: ignore[arg-type]
    page.set_default_timeout(_PATIENCE_MS)
    go(page, url)
    page.mouse.move(0, 0)  # the mouse must not open a table's toolbar
    page.get_by_test_id("stSkeleton").first.wait_for(state="detached")
    page.wait_for_timeout(_SETTLE_MS)
    # A short page is cut after its content.
    end = page.evaluate(
        "() => Math.max(...[...document.querySelectorAll('.stMainBlockContainer .stElementContainer')]"
        ".map(element => element.getBoundingClientRect().bottom))"
    )
    bottom = min(_HEIGHTS.get(path.stem, SIZE["height"]), end + _MARGIN)
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": SIZE["width"], "height": bottom})
    page.close()
    return path


_HEALTHY = """
import random, time
for step in range(1, 2000):
    time.sleep(0.5 + random.random() / 20)
    loss = 0.4 + 1.6 / (1 + step / 12) + random.random() / 25
    print(f"step {step}/1200 loss {loss:.4f}")
"""

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PICTURES)}; all unless named")
    parser.add_argument("--folder", type=Path, default=IMAGES)
    parser.add_argument("--speed", type=float, default=SPEED, help="how much faster the run is replayed")
    options = parser.parse_args()
    for path in take(options.folder, options.names or PICTURES, options.speed):
        print(path)
