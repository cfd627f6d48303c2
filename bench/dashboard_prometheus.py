"""Start a real Prometheus that contains a generated history, for ``bench/dashboard.py``."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import fleet
import psutil
from machine import free_port

PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")


def imported(store: Path, home: Path, *, whole: str, ranks_since: float, hours: float) -> int:
    """Import the points of `store` into ``home/prometheus`` and return the number of points."""
    text = home / "history.om"
    count = fleet.to_openmetrics(store, text, whole=whole, ranks_since=ranks_since)
    # promtool reads the whole text for each block, so use a few large blocks.
    width = f"--max-block-duration={int(2 * hours + 2)}h"
    words = [str(PROMTOOL), "tsdb", "create-blocks-from", "openmetrics", "--quiet", width]
    subprocess.run([*words, str(text), str(home / "prometheus")], check=True, stdout=subprocess.DEVNULL)
    text.unlink()
    return count


@contextlib.contextmanager
def serving(home: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Start a Prometheus with the data in ``home/prometheus``. Yield its address and its process."""
    config = home / "prometheus.yml"
    config.write_text("scrape_configs: []\n")
    port = free_port()
    words = [
        str(PROMETHEUS),
        f"--config.file={config}",
        f"--storage.tsdb.path={home / 'prometheus'}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                break
            time.sleep(0.1)
        yield url, psutil.Process(child.pid)
    finally:
        child.terminate()
        child.wait(30)
