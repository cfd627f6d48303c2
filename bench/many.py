"""Compare the processor time of ``stallwatch diagnose`` for many logs and for one log of the same total size.

    python bench/many.py [OLD/stallwatch NEW/stallwatch] [--ranks 8 64 1024] [--sizes 1 4 10]

The logs are generated (*simulated*) and are the same in every run. Every rank prints a line for each step,
one rank runs out of memory, and a collective of the other ranks times out ten minutes later. For each
version, the benchmark compares logs of a few megabytes with a log of 20 kB. Then it compares N logs of 1 MB
each with one log that joins the N logs. It also shows the peak of resident memory and whether the diagnosis
names the rank that failed first. Finally, it repeats this comparison for N logs of 2 kB each, one of which
contains the failure. The runs of the versions alternate, and so do the runs for the logs of up to a few
megabytes. Each version has its own caches, which a first run fills. Each figure is the minimum of
``--rounds`` runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from start import environment

BEGUN = datetime(2026, 11, 20, 3)
MB = 1_000_000
DIED = "Some ranks stopped taking part in collectives: this process ends so that nobody reads wrong data."


def written(path: Path, rank: int, size: int, rng: random.Random) -> datetime:
    """Write the step lines of a rank, with `size` bytes in total. Return the time of the last line."""
    at, step, held = BEGUN + timedelta(seconds=rng.uniform(-2, 2)), 0, 0
    with path.open("w") as out:
        while held < size:
            step, at = step + 1, at + timedelta(seconds=3)
            line = (
                f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03d} INFO "
                f"trainer.py:{rng.randrange(100, 400)} [Rank {rank}] step={step} "
                f"loss={2 - step * 1e-4:.5f} grad_norm={rng.uniform(0.5, 1.5):.3f} "
                f"lr=1.0e-05 tokens/s={rng.uniform(9000, 11000):.1f} mem={rng.uniform(60, 62):.1f}GiB\n"
            )
            held += out.write(line)
    return at


def out_of_memory(rank: int) -> str:
    """Return the last lines of the rank that fails first, because it runs out of memory."""
    return (
        "Traceback (most recent call last):\n"
        '  File "/srv/run/train.py", line 88, in <module>\n    train(model, batches)\n'
        '  File "/srv/run/train.py", line 61, in train\n    loss = model(**batch).loss\n'
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU {rank % 8} has a total "
        "capacity of 79.15 GiB of which 1.02 GiB is free. Including non-PyTorch memory, this process has "
        "78.10 GiB memory in use. Of the allocated memory 74.20 GiB is allocated by PyTorch, and 2.10 GiB is "
        "reserved by PyTorch but unallocated.\n"
    )


def timed_out(rank: int, last: datetime) -> str:
    """Return the last lines of a rank whose collective timed out because it waited for the failed rank."""
    at = last + timedelta(seconds=600)
    return (
        f"[rank{rank}]:[E{at:%m%d %H:%M:%S}.000000000 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog "
        "caught collective operation timeout: WorkNCCL(SeqNum=93120, OpType=ALLREDUCE, NumelIn=8388608, "
        "NumelOut=8388608, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"
        f"[rank{rank}]:[E{at:%m%d %H:%M:%S}.200000000 ProcessGroupNCCL.cpp:690] [Rank {rank}] {DIED}\n"
    )


def folder_of(ranks: int, size: int, folder: Path) -> tuple[Path, int]:
    """Write a folder with the logs of `ranks` ranks on hosts of eight ranks each.

    Return the folder and the number of the failing rank.
    """
    rng, first = random.Random(ranks), ranks * 3 // 5
    out = folder / f"{ranks}-logs"
    for rank in range(ranks):
        path = out / f"node-{rank // 8:03d}" / f"rank{rank}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        last = written(path, rank, size, rng)
        with path.open("a") as log:
            log.write(out_of_memory(rank) if rank == first else timed_out(rank, last))
    return out, first


def small_folder(files: int, folder: Path) -> tuple[Path, int]:
    """Write `files` logs of 2 kB, one of which contains a failure. Return the folder and the failed rank."""
    rng, failed = random.Random(files), files * 3 // 5
    out = folder / f"{files}-small"
    for rank in range(files):
        path = out / f"part-{rank // 1000:03d}" / f"rank{rank}.log"
        if not rank % 1000:
            path.parent.mkdir(parents=True)
        written(path, rank, 1800, rng)
        if rank == failed:
            with path.open("a") as log:
                log.write(out_of_memory(rank))
    return out, failed


def together(folder: Path, to: Path) -> Path:
    """Write a single log that joins all logs of a folder."""
    with to.open("wb") as out:
        for path in sorted(folder.rglob("*.log"), key=lambda path: int(path.stem[4:])):
            with path.open("rb") as log:
                shutil.copyfileobj(log, out)
    return to


def dask_seconds(path: Path, workers: int, folder: Path) -> float:
    """Return the elapsed seconds of a diagnosis by `workers` warm Dask workers."""
    from distributed import Client, LocalCluster

    import stallwatch

    os.environ.update(environment(folder))
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        executor = client.get_executor()
        stallwatch.diagnose([path], executor=executor)
        begun = time.monotonic()
        stallwatch.diagnose([path], executor=executor)
        return time.monotonic() - begun


#: Results of each version: processor seconds, peak of resident memory in bytes, and named rank.
Row = list[tuple[float, int, int | None]]


class Version:
    """An installed version of stallwatch, with its own caches."""

    def __init__(self, command: str, folder: Path) -> None:
        self.command = command
        folder.mkdir(mode=0o700)
        self.environ = environment(folder)

    def diagnose(self, path: Path) -> tuple[float, int, int | None]:
        """Return the processor time in seconds, the peak resident memory in bytes, and the named rank."""
        command = [self.command, "diagnose", "--workers", "1", "--json", str(path)]
        with tempfile.TemporaryFile() as printed:
            child = subprocess.Popen(command, env=self.environ, stdout=printed, stderr=subprocess.DEVNULL)
            _, _, used = os.wait4(child.pid, 0)
            child.returncode = 0
            printed.seek(0)
            primary = json.load(printed).get("primary") or {}
        return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, primary.get("rank")


def main() -> None:
    """Run all measurements and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", default=["stallwatch"], metavar="STALLWATCH")
    parser.add_argument("--ranks", nargs="*", type=int, default=[8, 64, 1024], help="numbers of logs of 1 MB")
    parser.add_argument(
        "--small", nargs="*", type=int, default=[1000, 10_000], help="numbers of logs of 2 kB"
    )
    parser.add_argument(
        "--sizes", nargs="*", type=int, default=[1, 4, 10], help="sizes of single logs, in MB"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--dask", type=int, default=0, help="number of logs of 1 MB to read with one and two Dask workers"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stallwatch-many-") as name:
        folder = Path(name)
        versions = [Version(command, folder / str(order)) for order, command in enumerate(arguments.versions)]
        small = folder / "small.log"
        large = folder / "large.log"
        written(small, 0, 20_000, random.Random(0))
        written(large, 0, 8 * MB, random.Random(0))
        for version in versions:
            version.diagnose(large)
        single = {"1 log of 20 kB": small}
        for size in arguments.sizes:
            path = single[f"1 log of {size} MB"] = folder / f"{size}.log"
            with path.open("a") as log:
                log.write(timed_out(0, written(path, 0, size * MB, random.Random(size))))
        rows = [
            [[version.diagnose(path) for version in versions] for path in single.values()]
            for _ in range(arguments.rounds)
        ]
        base = None
        for title, found in zip(single, zip(*rows, strict=True), strict=True):
            least = show(title, versions, found, base)
            base = base or least
        for ranks in arguments.ranks:
            rounds = arguments.rounds if ranks < 100 else 1
            logs, first = folder_of(ranks, MB, folder)
            compare(versions, logs, first, (f"1 log of {ranks} MB", f"{ranks} logs of 1 MB"), rounds)
        if arguments.dask:
            logs, _ = folder_of(arguments.dask, MB, folder)
            took = {
                workers: min(dask_seconds(logs, workers, folder / "0") for _ in range(arguments.rounds))
                for workers in (1, 2)
            }
            print(
                f"{arguments.dask} logs, Dask: {took[1]:.1f} s with one worker, {took[2]:.1f} s with two: ",
                end="",
            )
            print(f"{took[1] / took[2]:.2f} times as fast")
            shutil.rmtree(logs)
        for files in arguments.small:
            logs, first = small_folder(files, folder)
            compare(versions, logs, first, (f"1 log of {2 * files // 1000} MB", f"{files:,} logs of 2 kB"), 1)


def compare(versions: list[Version], logs: Path, failed: int, titles: tuple[str, str], rounds: int) -> None:
    """Print a row for one log that joins the `logs`, and a row for the logs themselves. Remove all logs."""
    whole = together(logs, logs.with_suffix(".log"))
    base = show(titles[0], versions, measured(versions, whole, rounds))
    whole.unlink()
    show(titles[1], versions, measured(versions, logs, rounds), base, failed)
    shutil.rmtree(logs)


def measured(versions: list[Version], path: Path, rounds: int) -> Sequence[Row]:
    """Diagnose the same logs with each version. Return a row for each round."""
    return [[version.diagnose(path) for version in versions] for _ in range(rounds)]


def show(
    title: str,
    versions: list[Version],
    found: Sequence[Row],
    base: list[float] | None = None,
    rank: int | None = None,
) -> list[float]:
    """Print a row for each version. Return the fastest time of each version in seconds."""
    least = [min(seconds for seconds, *_ in column) for column in zip(*found, strict=True)]
    for order, version in enumerate(versions):
        peak = max(row[order][1] for row in found) / MB
        ratio = (
            f", {least[order] / base[order]:.2f} × the time of the previous row"
            if base and rank is not None
            else ""
        )
        ratio = ratio or (
            f", {least[order] / base[order]:.2f} × the time of the log of 20 kB" if base else ""
        )
        named = f", rank {found[-1][order][2]} named (correct: {rank})" if rank is not None else ""
        print(f"{version.command}: {title}: {least[order]:.2f} s, peak {peak:.0f} MB{ratio}{named}")
    sys.stdout.flush()
    return least


if __name__ == "__main__":
    main()
