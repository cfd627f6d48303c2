"""Compare the speed of two Stallwatch checkouts and ripgrep, which take turns reading the same logs.

    python bench/turns.py matches|diagnose|two|samples ROUNDS CHECKOUT CHECKOUT LOG...

On a shared machine, only alternating runs can show a difference between two versions. Each checkout has its
own process, which reads the logs once before the measurement. The output shows the minimum and the median of
the processor seconds and of the elapsed seconds, and the speed relative to ripgrep. ``scanlog`` writes
suitable logs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from machine import measured

PATTERNS = 200
PARTS = ("rules", "lint", "logs", "exporter", "stallwatch", "alerts", "dashboard", "bench", "")
READERS = {
    "matches": "stallwatch matches",
    "diagnose": "stallwatch diagnose",
    "two": "stallwatch diagnose with 2 processes",
}


def read_on_request(kind: str, checkout: str, folder: str, logs: Sequence[str]) -> None:
    """Read the logs each time a line arrives on standard input, and print the seconds that the reading takes.

    Each checkout has a process that runs this function.
    """
    sys.path[:0] = [str(Path(checkout, part)) for part in PARTS]
    from scanners import contenders, plain_rules

    from stallwatch_exporter.sampling.rows import Sampling
    from stallwatch_rules.matching.database import DatabaseStore
    from stallwatch_rules.pages.catalogue import load_catalogue

    cache, files = Path(folder), [Path(log) for log in logs]
    rules, _ = plain_rules(load_catalogue(cache=cache), PATTERNS, DatabaseStore(cache))
    readers = {reader.name: reader.run for reader in contenders(rules, cache, 2)}
    readers["samples"] = lambda paths: sum(map(len, Sampling(paths).rows()))
    run = readers[READERS.get(kind, kind)]
    run(files)
    for _ in sys.stdin:
        print(json.dumps(measured(lambda: run(files))), flush=True)


def main(kind: str, rounds: str, first: str, second: str, *logs: str) -> None:
    """Run all measurements and print the results."""
    with tempfile.TemporaryDirectory() as folder:
        processes = {}
        for order, checkout in enumerate((first, second)):
            cache = Path(folder, str(order))
            cache.mkdir(mode=0o700)
            command = [sys.executable, __file__, "--", kind, str(Path(checkout).resolve()), str(cache), *logs]
            pipe = subprocess.PIPE
            processes[checkout] = subprocess.Popen([*command], stdin=pipe, stdout=pipe, text=True)

        def request_reading(process: subprocess.Popen[str]) -> tuple[float, float]:
            assert process.stdin is not None and process.stdout is not None
            print(file=process.stdin, flush=True)
            return tuple(json.loads(process.stdout.readline()))

        for process in processes.values():
            request_reading(process)
        patterns = str(Path(folder, "0", "patterns"))
        search = ["rg", "-a", "-j1", "--json", "--no-unicode", "-f", patterns, *logs]
        seconds: dict[str, list[tuple[float, float]]] = {}
        for _ in range(int(rounds)):
            for checkout, process in processes.items():
                seconds.setdefault(checkout, []).append(request_reading(process))
            ripgrep = measured(lambda: subprocess.run(search, stdout=subprocess.DEVNULL, check=True))
            seconds.setdefault("ripgrep", []).append(ripgrep)
        for process in processes.values():
            process.communicate()
    for name, values in seconds.items():
        print(name)
        for at, what in enumerate(("processor", "elapsed")):
            mine, base = ([item[at] for item in some] for some in (values, seconds["ripgrep"]))
            ratios = [f"{of(mine):.3f} s ({of(base) / of(mine):.2f}×)" for of in (min, statistics.median)]
            print(f"  {what:10}  minimum {ratios[0]}  median {ratios[1]}")


if __name__ == "__main__":
    if sys.argv[1] == "--":
        read_on_request(*sys.argv[2:5], sys.argv[5:])
    else:
        main(*sys.argv[1:])
