"""Compare the diagnosis of an upload with ``stallwatch diagnose`` of the same log."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import scanlog
from machine import measured

from stallwatch_dashboard.settings import DashboardSettings
from stallwatch_dashboard.uploads.reading import read_uploads

MOST = 2.5  #: maximum time of an upload, as a multiple of the command's time
_FAULT = "RuntimeError: CUDA error: an illegal memory access was encountered"


def compare(megabytes: int, rounds: int = 3) -> None:
    """Print the best times of an upload and of the command, and the number of progress updates on the page.

    Uploads and commands alternate for `rounds` rounds.
    """
    with tempfile.TemporaryDirectory(prefix="stallwatch-bench-") as folder:
        home = Path(folder)
        log = home / "rank0.log"
        scanlog.write_rank(log, 0, megabytes << 20, [_FAULT], 0.0001, 0.1)
        peaks: list[int] = []

        def command() -> None:
            words = [sys.executable, "-c", "from stallwatch.cli import main; main()", "diagnose", str(log)]
            subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

        def upload() -> None:
            peaks.clear()
            with log.open("rb") as file:
                settings = DashboardSettings(home=home)
                read_uploads([(log.name, file)], settings, lambda done, _: peaks.append(done))

        command()  # fill the caches of rules and patterns
        took = {"stallwatch diagnose": [], "upload": []}
        for _ in range(rounds):
            for name, act in (("stallwatch diagnose", command), ("upload", upload)):
                took[name].append(measured(act))
        print(f"{megabytes} MB of log, best of {rounds} rounds: processor time (elapsed time)")
        best = {name: tuple(map(min, zip(*all_of, strict=True))) for name, all_of in took.items()}
        for name, (used, passed) in best.items():
            print(f"  {name:36} {used:8.2f} s ({passed:.2f} s)")
        used, passed = (best["upload"][n] / best["stallwatch diagnose"][n] for n in (0, 1))
        print(f"  the upload takes {used:.2f} times ({passed:.2f} times) as long; the limit is {MOST} times")
        print(f"  the upload page received {len(peaks)} progress updates")


if __name__ == "__main__":
    compare(200)
