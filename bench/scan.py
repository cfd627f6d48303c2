"""Compare how fast Stallwatch and other tools read a log, and print ratios of times from the same run.

All readers receive the same generated log and the same patterns. Their counts are compared before any times
are measured. The rounds are interleaved, so a slow moment of the machine affects all readers.
"""

from __future__ import annotations

import gzip
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from machine import measured
from rich.console import Console
from rich.table import Table
from scanlog import write_rank
from scanners import Contender, contenders, plain_rules

from stallwatch_rules.matching.database import DatabaseStore
from stallwatch_rules.pages.catalogue import load_catalogue

BASE = "ripgrep --json"
RESULTS = Path(__file__).with_name("RESULTS.md")
_HEADS = (
    *("reader", "median MB/s", "lowest MB/s", "highest MB/s"),
    *(f"speed relative to {BASE}", "relative speed by processor time"),
)


@click.command()
@click.option("--megabytes", default=64, show_default=True, help="total size of the generated logs")
@click.option("--ranks", default=4, show_default=True, help="number of generated files")
@click.option("--rounds", default=3, show_default=True, help="number of interleaved rounds")
@click.option("--density", default=0.0003, show_default=True, help="share of the lines that are signatures")
@click.option("--bars", default=0.1, show_default=True, help="share of the lines that follow progress bars")
@click.option("--patterns", default=200, show_default=True, help="number of plain patterns")
@click.option("--compress", type=click.Choice(["gz", "zst"]), help="compress the files first")
@click.option("--logs", type=click.Path(exists=True, path_type=Path), help="read these real logs instead")
@click.option("--workers", default=2, show_default=True, help="processes of a parallel diagnosis")
@click.option("--save", is_flag=True, help=f"append the table to {RESULTS.name}")
def main(
    megabytes: int,
    ranks: int,
    rounds: int,
    density: float,
    bars: float,
    patterns: int,
    compress: str | None,
    logs: Path | None,
    workers: int,
    save: bool,
) -> None:
    """Compare how fast Stallwatch and other tools read a log."""
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = DatabaseStore(folder / "cache")
        rules, faults = plain_rules(load_catalogue(), patterns, store)
        if logs is None:
            known, files = 0, []
            for rank in range(ranks):
                path = folder / f"rank{rank}.log"
                _, found = write_rank(path, rank, megabytes * 1_000_000 // ranks, faults, density, bars)
                known += found
                files.append(path)
                console.print(f"rank {rank} written", style="dim")
        else:
            files, known = sorted(path for path in logs.rglob("*") if path.is_file()), -1
        size = sum(path.stat().st_size for path in files)
        sample = _sample(files, folder)
        if compress:
            files = [_compressed(path, compress) for path in files]
        readers = contenders(rules, folder, workers)
        console.print(f"{size / 1e6:.0f} MB in {len(files)} files, {patterns} patterns, {known} signatures")
        _check(readers, files, sample, known, console)
        seconds, processor = _rounds(readers, files, sample, rounds, console)
        table = _table(readers, seconds, processor, size, sample)
        console.print(table)
        if save:
            what = f"density {density}, bars {bars}, {compress or 'plain'}"
            caption = f"{size / 1e6:.0f} MB, {patterns} patterns, {what}"
            _save(table, caption)


def _sample(files: Sequence[Path], folder: Path) -> dict[float, Path]:
    """Write the beginning of the first file into smaller files, which replace the log for slow readers."""
    total = sum(path.stat().st_size for path in files)
    made = {}
    for share in (0.01, 0.02, 0.1):
        data = files[0].open("rb").read(int(total * share))
        made[share] = folder / f"sample{share}.txt"
        made[share].write_bytes(data[: data.rfind(b"\n") + 1])
    return made


def _compressed(path: Path, kind: str) -> Path:
    target = path.with_name(f"{path.name}.{kind}")
    if kind == "gz":
        with path.open("rb") as source, gzip.open(target, "wb", compresslevel=6) as out:
            shutil.copyfileobj(source, out)
    else:
        import zstandard

        with path.open("rb") as source, target.open("wb") as out:
            zstandard.ZstdCompressor().copy_stream(source, out)
    return target


def _input(reader: Contender, files: Sequence[Path], sample: dict[float, Path]) -> Sequence[Path]:
    return files if reader.share == 1.0 else [sample[reader.share]]


def _check(
    readers: Sequence[Contender],
    files: Sequence[Path],
    sample: dict[float, Path],
    known: int,
    console: Console,
) -> None:
    """Stop the benchmark if the readers do not find the same lines."""
    counted = {r.name: r.run(files) for r in readers if r.counts and r.share == 1.0}
    console.print(f"matching lines: {counted}")
    if len({*counted.values(), *([known] if known >= 0 else [])}) != 1:
        sys.exit("the readers do not find the same lines, so their times are not comparable")
    for reader in readers:
        if reader.same_as is not None and (found := reader.run(files)) != (wanted := reader.same_as(files)):
            sys.exit(f"{reader.name} counts {found} matches of rules instead of {wanted}")
    for share in sample:
        part = {r.name: r.run([sample[share]]) for r in readers if r.counts and r.share in (share, 1.0)}
        if len(set(part.values())) != 1:
            sys.exit(f"the readers do not find the same lines in a part of the log: {part}")


Taken = dict[str, list[float]]


def _rounds(
    readers: Sequence[Contender],
    files: Sequence[Path],
    sample: dict[float, Path],
    rounds: int,
    console: Console,
) -> tuple[Taken, Taken]:
    """Return each reader's elapsed time, and its processor time, which depends less on other load."""
    seconds: Taken = {reader.name: [] for reader in readers}
    processor: Taken = {reader.name: [] for reader in readers}
    for number, reader in itertools.product(range(rounds), readers):
        used, elapsed = measured(partial(reader.run, _input(reader, files, sample)))
        seconds[reader.name].append(elapsed)
        processor[reader.name].append(used)
        console.print(f"round {number + 1}: {reader.name} {seconds[reader.name][-1]:.2f} s", style="dim")
    return seconds, processor


def _table(
    readers: Sequence[Contender], seconds: Taken, processor: Taken, size: int, sample: dict[float, Path]
) -> Table:
    def speeds(reader: Contender, taken: Taken) -> list[float]:
        read = size if reader.share == 1.0 else sample[reader.share].stat().st_size
        return [read / 1e6 / max(item, 1e-3) for item in taken[reader.name]]

    by_clock = {reader.name: speeds(reader, seconds) for reader in readers}
    by_processor = {reader.name: statistics.median(speeds(reader, processor)) for reader in readers}
    table = Table(*_HEADS)
    for name, values in sorted(by_clock.items(), key=lambda item: -statistics.median(item[1])):
        middle = statistics.median(values)
        ratios = ["not installed"] * 2
        if BASE in by_clock:
            ratios = [
                f"{item / base:.2f}×"
                for item, base in (
                    (middle, statistics.median(by_clock[BASE])),
                    (by_processor[name], by_processor[BASE]),
                )
            ]
        table.add_row(name, f"{middle:.1f}", f"{min(values):.1f}", f"{max(values):.1f}", *ratios)
    return table


def _save(table: Table, caption: str) -> None:
    columns = [list(column.cells) for column in table.columns]
    heads = [str(column.header) for column in table.columns]
    rows = [heads, ["---"] * len(heads), *map(list, zip(*columns, strict=True))]
    commit = subprocess.run(["git", "describe", "--always"], capture_output=True, text=True, check=False)
    lines = [f"\n## {caption}, {os.cpu_count()} processors, {commit.stdout.strip()}\n"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    with RESULTS.open("a") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
