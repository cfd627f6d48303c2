# ruff: noqa: E501 - some log lines are longer than the limit
"""Measure how fast Stallwatch reads all samples of a log, compared with a ripgrep search for many patterns.

    python bench/samples.py [LOG]

Without LOG, the benchmark generates the log of a rank that prints progress bars, dictionaries, and the lines
of programs such as DeepSpeed and Megatron. ripgrep receives as many patterns as the catalogue contains. The
runs of the two programs alternate, and the ratio compares their median times.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stallwatch_exporter.sampling.rows import Sampling
from stallwatch_rules.pages.catalogue import load_catalogue

SIZE = 48 << 20
ROUNDS = 3
PATTERNS = 200
NAME = re.compile(r"\(\?P<\w+>")


def lines(rnd: random.Random) -> Iterator[str]:
    """Yield the lines of an endless log."""
    step = 0
    while True:
        step += 1
        clock = f"2026-11-{1 + step // 86400 % 28:02d} {step // 3600 % 24:02d}:{step // 60 % 60:02d}:{step % 60:02d}"
        f = rnd.random
        for _ in range(rnd.randrange(3, 8)):
            yield f"\r {step % 100:2d}%|{'█' * (step % 10)}  | {step}/90000 [{step % 60:02d}:11<1:02:03, {f() * 5:5.2f}s/it]"
        yield f"\n{{'loss': {f() * 3:.4f}, 'grad_norm': {f() * 4}, 'learning_rate': {f() * 1e-4}, 'epoch': {f():.2f}}}\n"
        yield (
            f" [{clock}] iteration {step:8d}/  500000 | consumed samples: {step * 64:12d} | elapsed time per iteration"
            f" (ms): {f() * 9000:.1f} | learning rate: {f() * 1e-4:.6E} | global batch size:    64 | lm loss:"
            f" {f() * 3:.6E} | loss scale: 1.0 | grad norm: {f() * 3:.3f} | number of skipped iterations:   0 |\n"
        )
        yield (
            f"[{clock},{step % 1000:03d}] [INFO] [timer.py:260:stop] epoch=0/micro_step={step * 4}/global_step={step},"
            f" RunningAvgSamplesPerSec={f() * 900}, CurrSamplesPerSec={f() * 900}, MemAllocated={f() * 70:.2f}GB,"
            f" MaxMemAllocated={f() * 80:.2f}GB\n"
        )
        for _ in range(6):
            yield (
                f"node-{rnd.randrange(128):03d}:{rnd.randrange(99999)}:{rnd.randrange(99999)} [0] NCCL INFO Channel"
                f" {rnd.randrange(32):02d}/0 : {rnd.randrange(8)} -> {rnd.randrange(8)} via P2P/IPC/read\n"
            )
            yield f"{clock},{rnd.randrange(1000):03d} | INFO    | worker.0:run:{rnd.randrange(900)} - batch saved\n"


def generate(path: Path) -> None:
    """Write a log of ``SIZE`` bytes."""
    rnd, size = random.Random(0), 0
    with path.open("w", encoding="utf-8", newline="") as out:
        for line in lines(rnd):
            size += out.write(line)
            if size >= SIZE:
                return


def samples(log: Path) -> int:
    """Read all samples of a log as rows and return the number of rows."""
    return sum(map(len, Sampling([log]).rows()))


def ripgrep(log: Path, patterns: Path) -> int:
    """Run ripgrep with the patterns and JSON output, and return the number of bytes that it prints."""
    command = ["rg", "--json", "--no-unicode", "-f", str(patterns), str(log)]
    found = subprocess.run(command, capture_output=True, check=False)
    if found.returncode > 1:
        raise SystemExit(found.stderr.decode()[-200:])
    return len(found.stdout)


def unnamed(pattern: str) -> str:
    """Return the pattern without the names of its groups.

    ripgrep joins all patterns, so the same name would occur twice.
    """
    return NAME.sub("(", pattern)


def accepted(pattern: str) -> bool:
    """Return True if ripgrep can compile the pattern."""
    command = ["rg", "--no-unicode", "-e", pattern, os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode < 2


def main() -> None:
    """Run all measurements and print the results."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder, "train.log")
        if len(sys.argv) == 1:
            generate(log)
        size = log.stat().st_size
        contenders: dict[str, Callable[[], int]] = {"stallwatch samples": lambda: samples(log)}
        if shutil.which("rg"):
            patterns = Path(folder, "patterns")
            known = [p for page in load_catalogue().pages.values() for p in page.patterns]
            known = [pattern for pattern in map(unnamed, known) if accepted(pattern)][:PATTERNS]
            patterns.write_text("\n".join(known) + "\n")
            contenders[f"rg --json, {len(known)} patterns"] = lambda: ripgrep(log, patterns)
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(ROUNDS):
            for name, run in contenders.items():
                start = time.perf_counter()
                found = run()
                seconds[name].append(time.perf_counter() - start)
                print(f"{name}: {found:,}", file=sys.stderr)
        medians = {name: statistics.median(taken) for name, taken in seconds.items()}
        for name, taken in seconds.items():
            speeds = [size / 1e6 / item for item in (medians[name], max(taken), min(taken))]
            ratio = list(medians.values())[-1] / medians[name]
            print(
                f"{name:32} {speeds[0]:8.1f} MB/s ({speeds[1]:.1f} to {speeds[2]:.1f})  {ratio:.3f} × last row"
            )


if __name__ == "__main__":
    main()
