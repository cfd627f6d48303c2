"""How fast is a log read, against tools that people would use instead? Prints ratios of one run.

The same generated log and the same patterns go through Stallwatch's matcher, its whole diagnosis,
``grep -P``, Python's ``re`` and ``cat``. The counts of matching lines are compared before anything is timed;
the rounds are interleaved, so that a slow moment of the machine meets all of them.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from stallwatch_exporter.postmortem import diagnose_paths
from stallwatch_rules.catalogue import Catalogue, load_catalogue
from stallwatch_rules.lines import LineReader
from stallwatch_rules.matcher import Matcher

STEP = "{{'loss': {loss:.4f}, 'grad_norm': {norm:.3f}, 'learning_rate': 1e-05, 'epoch': {epoch:.2f}}}"
CHATTER = (
    "[2026-11-20 10:00:00,000] [INFO] [logging.py:128:log_dist] [Rank 0] step={i}, skipped=0, lr=[1e-05]",
    "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py:824: UserWarning: a deprecated call",
    "  return Variable._execution_engine.run_backward(",
    "INFO:train:batch {i} of the shard took 12.5 ms to load",
)
FAILURES = (
    "Invalidate trace cache @ step {i}: expected module 319, but got module 636",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
    " 79.10 GiB of which 1.20 GiB is free.",
)


def write_log(folder: Path, megabytes: int) -> None:
    """Four ranks; every 500th line is one that a rule knows."""
    for rank in range(4):
        with (folder / f"rank{rank}.log").open("w") as out:
            i = 0
            while out.tell() < megabytes * 1_000_000 // 4:
                i += 1
                out.write(STEP.format(loss=2 / (1 + i / 1000), norm=1.0, epoch=i / 5000) + "\n")
                for line in CHATTER:
                    out.write(line.format(i=i) + "\n")
                if i % 100 == 0:
                    out.write(FAILURES[i // 100 % 2].format(i=i) + "\n")


def patterns_of(catalogue: Catalogue) -> list[str]:
    return [pattern for page in catalogue.pages.values() for pattern in page.patterns]


def by_matcher(catalogue: Catalogue, files: list[Path]) -> int:
    matcher, found = Matcher(catalogue), set()
    for path in files:
        reader = LineReader(path.name)
        with path.open("rb") as file:
            while block := file.read(1 << 18):
                lines = reader.feed(block)
                found |= {(path, lines[index].number) for index, _, _ in matcher.match(lines)}
        lines = reader.finish()
        found |= {(path, lines[index].number) for index, _, _ in matcher.match(lines)}
    return len(found)


def alternation_of(patterns: list[str]) -> str:
    """One pattern of all: without names (they would repeat), with a leading (?i) kept to its own part."""
    unnamed = [re.sub(r"\(\?P<\w+>", "(?:", pattern) for pattern in patterns]
    return "|".join(re.sub(r"^\(\?i\)(.*)", r"(?i:\1)", pattern) for pattern in unnamed)


def by_python_re(patterns: list[str], files: list[Path]) -> int:
    alternation = re.compile(alternation_of(patterns))
    return sum(1 for path in files for line in path.open(errors="replace") if alternation.search(line))


def by_grep(pattern_file: Path, files: list[Path]) -> int:
    done = subprocess.run(
        ["grep", "-c", "-P", "-f", str(pattern_file), *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
    )
    return sum(int(line.rsplit(":", 1)[1]) for line in done.stdout.splitlines())


@click.command()
@click.option("--megabytes", default=40, show_default=True, help="size of the generated log")
@click.option("--rounds", default=3, show_default=True, help="interleaved rounds; the median counts")
def main(megabytes: int, rounds: int) -> None:
    """Compare the speed of reading one generated log."""
    catalogue, console = load_catalogue(), Console()
    patterns = patterns_of(catalogue)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_log(folder, megabytes)
        files = sorted(folder.glob("*.log"))
        pattern_file = folder / "patterns"
        pattern_file.write_text(alternation_of(patterns) + "\n")  # grep -P takes one pattern only
        contenders: dict[str, Callable[[], int]] = {
            "cat (limit)": lambda: len(
                subprocess.run(["cat", *map(str, files)], capture_output=True, check=True).stdout
            ),
            "grep -P, one alternation": lambda: by_grep(pattern_file, files),
            "Python re, one alternation": lambda: by_python_re(patterns, files),
            "stallwatch matcher": lambda: by_matcher(catalogue, files),
            "stallwatch diagnose, all of it": lambda: (
                diagnose_paths([str(folder)], catalogue=catalogue)[0].stats.lines
            ),
        }
        counts = {name: run() for name, run in list(contenders.items())[1:4]}
        console.print(f"{len(patterns)} patterns, {megabytes} MB, matching lines: {counts}")
        if len(set(counts.values())) != 1:
            sys.exit("the tools do not find the same lines: the times below would mean nothing")
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, run in contenders.items():
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
        show(console, seconds)


def show(console: Console, seconds: dict[str, list[float]]) -> None:
    base = statistics.median(seconds["grep -P, one alternation"])
    table = Table("reader", "speed against grep", "fastest", "slowest", title="medians of interleaved rounds")
    for name, times in seconds.items():
        ratios = [f"{base / value:.2f}×" for value in (statistics.median(times), min(times), max(times))]
        table.add_row(name, *ratios)
    console.print(table)


if __name__ == "__main__":
    main()
