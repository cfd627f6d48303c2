"""Measure the cost of starting `stallwatch run -- true`, and the cost of an agent while 8 ranks print.

Each rank prints 10 lines per second. The runs of the versions alternate, and each version has its own caches.
Usage: `python bench/start.py OLD/stallwatch NEW/stallwatch`
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

RANKS = """
import sys, threading, time
def rank(number):
    for step in range(10000):
        print(f"[rank{number}]: step {step}/10000 loss {2 / (step + 1):.4f} lr 1e-4", flush=True)
        time.sleep(0.1)
for number in range(8):
    threading.Thread(target=rank, args=(number,), daemon=True).start()
time.sleep(float(sys.argv[1]))
"""


def environment(folder: Path) -> dict[str, str]:
    """Return an environment with its own folders. Python caches bytecode, as in an installation."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**environ, "STALLWATCH_HOME": str(folder / "home"), "STALLWATCH_CACHE": str(folder / "cache")}


def start(stallwatch: str, folder: Path) -> float:
    """Return the processor time of `stallwatch run -- true`, including the command itself, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [stallwatch, "run", "--port", "0", "--", "true"]
    subprocess.run(command, env=environment(folder), stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def watch(stallwatch: str, folder: Path, seconds: float, warm_up: float = 10.0) -> tuple[float, float]:
    """Return the agent's share of a core and its resident memory in MB."""
    command = [stallwatch, "run", "--port", "0", "--", sys.executable, "-c", RANKS]
    command.append(str(warm_up + seconds + 10))
    with subprocess.Popen(
        command, env=environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        agent = psutil.Process(running.pid)
        time.sleep(warm_up)
        before, began = agent.cpu_times(), time.monotonic()
        time.sleep(seconds)
        after, took = agent.cpu_times(), time.monotonic() - began
        resident = agent.memory_info().rss / 1e6
        running.terminate()
    return (after.user + after.system - before.user - before.system) / took, resident


def main() -> None:
    """Measure all versions and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stallwatch", nargs="+", help="path of each version's stallwatch")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folders = {each: Path(name) / str(number) for number, each in enumerate(given.stallwatch)}
        for _ in range(2):  # the first call writes the caches, and the second call reads them
            for each, folder in folders.items():
                start(each, folder)
        took: dict[str, list[float]] = {each: [] for each in folders}
        for _ in range(given.runs):
            for each, folder in folders.items():
                took[each].append(start(each, folder))
        print(
            "| version | `run -- true`, processor seconds | ratio to the first "
            "| agent, % of a core | agent, MB |"
        )
        print("|---|---|---|---|---|")
        for each, folder in folders.items():
            share, resident = watch(each, folder, given.seconds)
            middle = statistics.median(took[each])
            pairs = zip(took[each], took[given.stallwatch[0]], strict=True)
            ratio = statistics.median(mine / first for mine, first in pairs)
            print(f"| {each} | {middle:.2f} | {ratio:.2f} | {100 * share:.2f} | {resident:.0f} |")


if __name__ == "__main__":
    main()
