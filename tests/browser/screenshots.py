"""Take the pictures in docs/images again, from a replay of the recorded run: ``make screenshots``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from stage import RECORDING, ROOT, SIZE, Stage, board, chromium, replayed

IMAGES = ROOT / "docs" / "images"
SPEED = 4.0  # the recorded hang of a minute and a half is then long enough for two pictures
FLOOR = 5.0
_SETTLE_MS = 1500  # a chart's fonts and the last redraw


def _printed(recording: str, code: int) -> list[str]:
    """A command that prints what a recorded run had printed, and ends like it."""
    logs = sorted(map(str, (RECORDING.parent / recording).rglob("*.log")))
    return ["sh", "-c", f'cat "$@"; exit {code}', "sh", *logs]


def take(images: Path, speed: float = SPEED) -> list[Path]:
    """Write run.png, runs.png and postmortem.png into `images`."""
    images.mkdir(parents=True, exist_ok=True)
    taken = [images / "run.png", images / "runs.png", images / "postmortem.png"]
    with tempfile.TemporaryDirectory(prefix="stallwatch-screenshots-") as home, chromium() as browser:
        stage = Stage(Path(home))
        try:
            stage.dashboard()
            stage.run("llama-3b-grpo", replayed(speed), floor=FLOOR)
            stage.run("qwen-7b-sft", [sys.executable, "-u", "-c", _HEALTHY], floor=FLOOR)
            stage.run("mistral-7b-ppo", _printed("zero3-save-unwrapped-model", 1), floor=FLOOR)
            stage.run("llama-1b-sft", _printed("healthy", 0), floor=FLOOR)
            page = browser.new_page(viewport=SIZE, color_scheme="light", timezone_id="UTC")
            page.goto(f"{stage.url}/run?run=llama-3b-grpo")
            page.get_by_role("heading", name="Stalled").wait_for(timeout=180_000)
            board(page)
            page.wait_for_timeout(6000)  # let the open step grow past the threshold
            page.screenshot(path=taken[0])
            page.goto(f"{stage.url}/")
            hint = page.get_by_text("Choose a row")
            hint.wait_for()
            page.wait_for_timeout(_SETTLE_MS)
            box = hint.bounding_box()
            height = box["y"] + box["height"] + 16 if box else SIZE["height"]
            page.screenshot(path=taken[1], clip={"x": 0, "y": 0, "width": SIZE["width"], "height": height})
            page.goto(f"{stage.url}/postmortem")
            logs = sorted((RECORDING / "ranks").glob("*.log"))
            page.locator("input[type=file]").set_input_files(logs)
            page.get_by_role("heading", name="Failed").wait_for(timeout=60_000)
            page.wait_for_timeout(_SETTLE_MS)
            page.screenshot(path=taken[2])
        finally:
            stage.close()
    return taken


_HEALTHY = """
import random, time
for step in range(1, 2000):
    time.sleep(0.5 + random.random() / 20)
    loss = 0.4 + 1.6 / (1 + step / 12) + random.random() / 25
    print(f"step {step}/1200 loss {loss:.4f}")
"""

if __name__ == "__main__":
    for path in take(IMAGES):
        print(path)
