"""What a training step costs: ten values through the probe and through what else people use for them.

    make bench-probe

All rows are measured in one run, in turns, so that a noisy machine is noisy for all; each in a process of
its own, so that a logger's threads burden nobody else. Loggers that are not installed are left out. The
import cost is that of the whole bootstrap in a fresh Python. Then steps of 50 ms, in pairs with and without a
probe, and a scrape of ten thousand series.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from prometheus_client import generate_latest

from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.probe.hooks.torch import accelerator_memory, resident_memory
from stallwatch_exporter.rings.probing import with_probe
from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.serving.metrics import RunMetrics

VALUES = {
    "loss": 1.25,
    "grad_norm": 0.5,
    "learning_rate": 1e-4,
    "loss_scale": 65536.0,
    "target_steps": 1000.0,
    "skipped_steps": 2.0,
    "memory_allocated_bytes": 1e9,
    "memory_reserved_bytes": 2e9,
    "memory_peak_bytes": 3e9,
    "resident_bytes": 4e9,
}
ROUNDS = 15
SECONDS = 0.04  # of each row in each round
BATCH = 20
PAIRS = 300
SERIES = 10_000
SERIES_OF_A_RANK = 11  # of those values, with its step and when that was
Step = Callable[[int], None]


def probe(folder: Path) -> Step:
    told = Probe(folder, {"RANK": "0"})

    def step(number: int) -> None:
        told.step(
            float(number),
            loss=1.25,
            grad_norm=0.5,
            learning_rate=1e-4,
            loss_scale=65536.0,
            target_steps=1000.0,
            skipped_steps=2.0,
            memory_allocated_bytes=1e9,
            memory_reserved_bytes=2e9,
            memory_peak_bytes=3e9,
            resident_bytes=4e9,
        )

    return step


def gauges(_: Path) -> Step:
    from prometheus_client import CollectorRegistry, Gauge

    registry = CollectorRegistry()
    bound = [(Gauge(name, name, registry=registry), value) for name, value in VALUES.items()]

    def step(_: int) -> None:
        for gauge, value in bound:
            gauge.set(value)

    return step


def labelled_gauges(_: Path) -> Step:
    from prometheus_client import CollectorRegistry, Gauge

    registry = CollectorRegistry()
    labelled = [(Gauge(name, name, ["rank"], registry=registry), value) for name, value in VALUES.items()]

    def step(_: int) -> None:
        for gauge, value in labelled:
            gauge.labels("0").set(value)

    return step


def tensorboard(folder: Path) -> Step:
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(folder))

    def step(number: int) -> None:
        for name, value in VALUES.items():
            writer.add_scalar(name, value, number)

    return step


def mlflow(folder: Path) -> Step:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # newer versions have to be asked for it
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=folder.as_uri())
    run = client.create_run(client.create_experiment("bench")).info.run_id
    from mlflow.entities import Metric

    def step(number: int) -> None:
        now = int(time.time() * 1000)
        client.log_batch(run, [Metric(name, value, now, number) for name, value in VALUES.items()])

    return step


def wandb(folder: Path) -> Step:
    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_DIR=str(folder))
    import wandb

    run = wandb.init(project="bench", dir=str(folder))

    def step(_: int) -> None:
        run.log(VALUES)

    return step


def trackio(folder: Path) -> Step:
    os.environ["TRACKIO_DIR"] = str(folder)
    import trackio

    run = trackio.init(project="bench", embed=False)

    def step(_: int) -> None:
        run.log(VALUES)

    return step


ROWS: dict[str, tuple[str, Callable[[Path], Step]]] = {
    "stallwatch probe": ("stallwatch_exporter", probe),
    "prometheus-client, bound gauges": ("prometheus_client", gauges),
    "prometheus-client, labels each time": ("prometheus_client", labelled_gauges),
    "trackio": ("trackio", trackio),
    "wandb offline": ("wandb", wandb),
    "tensorboardX": ("tensorboardX", tensorboard),
    "mlflow file store": ("mlflow", mlflow),
}


def microseconds(step: Step, first: int) -> tuple[list[float], int]:
    """The time of one step, batch by batch for about ``SECONDS``; and the number of the next."""
    number, took, until = first, [], time.perf_counter() + SECONDS
    while (begin := time.perf_counter()) < until:
        for _ in range(BATCH):
            number += 1
            step(number)
        took.append((time.perf_counter() - begin) / BATCH * 1e6)
    return took, number


def import_milliseconds(folder: Path) -> float:
    """What the bootstrap adds to the start of a Python, by the interpreter's own account."""
    code = [sys.executable, "-X", "importtime", "-c", "pass"]
    rings = folder / f"{os.getpid()}-1"  # the command itself does more than what it starts
    rings.mkdir(exist_ok=True)
    took = []
    for _ in range(9):
        done = subprocess.run(code, env=with_probe(os.environ, rings), capture_output=True, text=True)
        own = [line for line in done.stderr.splitlines() if line.split("|")[-1].strip() == "sitecustomize"]
        took.append(max(int(line.split("|")[1]) for line in own) / 1000)
    return statistics.median(took)


def serve_turns(row: str, folder: Path, asked: Connection) -> None:
    """In a process of its own, so that a logger's threads burden nobody else: measure whenever asked."""
    try:
        step = ROWS[row][1](folder)
    except Exception as error:
        asked.send(f"{type(error).__name__}: {error}")
        return
    asked.send(None)
    number = 0
    while asked.recv():
        took, number = microseconds(step, number)
        asked.send(took)
    os._exit(0)  # what the logger still wants to send or ask at exit is not measured here


def steps(folder: Path) -> dict[str, list[float]]:
    """Microseconds of ten values, batch by batch, of each row that starts; all in turns."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    for row, (package, _) in ROWS.items():
        if importlib.util.find_spec(package) is None:
            print(f"{row}: not installed, left out")
            continue
        own = folder / row.replace(" ", "-")
        own.mkdir()
        pipes[row], theirs = context.Pipe()
        context.Process(target=serve_turns, args=(row, own, theirs), daemon=True).start()
    for row, pipe in list(pipes.items()):
        problem = pipe.recv()
        if problem is not None:
            print(f"{row}: does not start ({problem}), left out")
            del pipes[row]
    took: dict[str, list[float]] = {row: [] for row in pipes}
    for _ in range(ROUNDS):
        for row, pipe in pipes.items():
            pipe.send(True)
            took[row] += pipe.recv()
    for pipe in pipes.values():
        pipe.send(False)
    return took


def paired(folder: Path) -> tuple[float, float]:
    """What a probe adds to steps of 50 ms, in percent, and the error of that: pairs in random order.

    The step is arithmetic, not sleep: a sleep would hide what is added to it. Its time is the processor's,
    which other programs on a busy machine disturb less.
    """
    told = Probe(folder, {"RANK": "0"})
    told.samplers += [accelerator_memory, resident_memory]  # what costs more, once a second
    values = list(range(2000))

    def work(times: int) -> None:
        for _ in range(times):
            sum(values)

    begin = time.perf_counter()
    work(500)
    times = int(500 * 0.05 / (time.perf_counter() - begin)) or 1
    draw, differences, usual = random.Random(1), [], []
    for _ in range(PAIRS):
        spent = {}
        for probed in draw.sample((True, False), 2):
            begin = time.thread_time()
            work(times)
            if probed:
                told.step(loss=1.25, grad_norm=0.5, learning_rate=1e-4)
            spent[probed] = time.thread_time() - begin
        differences.append(spent[True] - spent[False])
        usual.append(spent[False])
    step = statistics.median(usual)
    differences.sort()
    middle = differences[PAIRS // 4 : -(PAIRS // 4)]  # without the pairs that something else fell into
    error = statistics.stdev(middle) / len(middle) ** 0.5
    return statistics.mean(middle) / step * 100, error / step * 100


def rendering_milliseconds() -> tuple[float, float, int]:
    """What one scrape of ten thousand series costs the agent, and with the library alone; how many they were.

    Every value changed since the scrape before. The time is the processor's.
    """
    metrics = RunMetrics("bench")
    own, library = [], []
    for scrape in range(15):
        for rank in range(SERIES // SERIES_OF_A_RANK):
            values = {name: value + 0.37 * scrape for name, value in VALUES.items()}
            metrics.hooked(Record(rank, 1, 1.0, {**values, "step": float(scrape)}))
            metrics.stepped(rank, 1e9 + scrape)
        for took, render in (
            (own, metrics.registry.page),
            (library, lambda: generate_latest(metrics.registry)),
        ):
            begin = time.thread_time()
            page = render()
            took.append((time.thread_time() - begin) * 1000)
    series = sum(not line.startswith(b"#") for line in page.splitlines())
    return statistics.median(own), statistics.median(library), series


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        took = steps(folder)
        medians = {row: statistics.median(found) for row, found in took.items()}
        own_cost = medians["stallwatch probe"]
        print(f"\n{'ten values a step':38} {'median µs':>10} {'fastest':>8} {'probe is':>10}")
        for row, cost in medians.items():
            print(f"{row:38} {cost:10.2f} {min(took[row]):8.2f} {f'1/{cost / own_cost:.1f}':>10}")
        print(f"\nstart of a Python: {import_milliseconds(folder):.1f} ms for the bootstrap")
        added, error = paired(folder)
        print(f"{PAIRS} pairs of 50 ms steps: {added:+.4f} % ± {error:.4f} % with the probe")
        rendering, library, series = rendering_milliseconds()
        print(f"one scrape of {series:,} series: {rendering:.1f} ms; by the library {library:.1f} ms")


if __name__ == "__main__":
    main()
