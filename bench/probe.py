"""Compare the cost of logging ten values per training step with the probe and with other loggers.

    make bench-probe

All rows are measured alternately in one run, so noise on the machine affects all rows. Each row has its own
process, so the threads of a logger do not affect other rows. Loggers that are not installed are skipped. The
import cost is the cost of the full bootstrap in a fresh Python. Two more measurements follow. The first shows
how much the probe adds to a step of 50 ms if the training fills the caches between two calls of the probe. It
compares these steps with steps that do not call the probe. The second shows the cost of a scrape of ten
thousand series.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
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
from typing import Any

from prometheus_client import generate_latest
from step_cost import Costs, costs

from stallwatch_exporter.probe.api import SAMPLE_SECONDS, Probe
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
SECONDS = 0.04  # seconds for each row in each round
BATCH = 20
WORK_SECONDS = 0.005  # seconds of work before each call; it makes the caches as cold as 50 ms of work would
STEP_SECONDS = 0.05  # duration of the training step that the costs are compared to
COMPARED = 1500  # number of measurements of each kind of step
SWEPT_BYTES = 4 << 20  # bytes that the work copies to evict all other data from the caches of a core
SERIES = 10_000
SERIES_OF_A_RANK = 11  # the ten values, and a step number with its time
Step = Callable[[int], None]


def probe(folder: Path) -> Step:
    return reporting_step(Probe(folder, {"RANK": "0"}).step)


def empty(_: Path) -> Step:
    """Return a step that passes ten values to an empty function.

    This step shows the cost of the measurement itself.
    """
    return reporting_step(nothing)


def reporting_step(report: Callable[..., None]) -> Step:
    def step(number: int) -> None:
        report(
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


def nothing(
    number: float | None = None,
    *,
    loss: Any = None,
    grad_norm: Any = None,
    learning_rate: Any = None,
    loss_scale: Any = None,
    target_steps: Any = None,
    skipped_steps: Any = None,
    memory_allocated_bytes: Any = None,
    memory_reserved_bytes: Any = None,
    memory_peak_bytes: Any = None,
    resident_bytes: Any = None,
    **others: Any,
) -> None:
    """Accept the same arguments as the probe, and do nothing."""


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
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # required in later versions
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
    "a function that does nothing": ("sys", empty),
    "prometheus-client, bound gauges": ("prometheus_client", gauges),
    "prometheus-client, labels each time": ("prometheus_client", labelled_gauges),
    "trackio": ("trackio", trackio),
    "wandb offline": ("wandb", wandb),
    "tensorboardX": ("tensorboardX", tensorboard),
    "mlflow file store": ("mlflow", mlflow),
}


def microseconds(step: Step, first: int) -> tuple[list[float], int]:
    """Run a step in batches for about ``SECONDS`` seconds.

    Return the microseconds per step for each batch, and the number of the last step.
    """
    number, took, until = first, [], time.perf_counter() + SECONDS
    while (begin := time.perf_counter()) < until:
        for _ in range(BATCH):
            number += 1
            step(number)
        took.append((time.perf_counter() - begin) / BATCH * 1e6)
    return took, number


def import_milliseconds(folder: Path) -> tuple[float, float]:
    """Return the median and minimum milliseconds that the bootstrap adds to Python's start."""
    code = [sys.executable, "-X", "importtime", "-c", "pass"]
    rings = folder / f"{os.getpid()}-1"  # this process acts as the command; its ID names the folder
    rings.mkdir(exist_ok=True)
    environ = with_probe(os.environ, rings)
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have compiled bytecode
    took = []
    for _ in range(9):
        done = subprocess.run(code, env=environ, capture_output=True, text=True)
        lines = [line for line in done.stderr.splitlines() if line.split("|")[-1].strip() == "sitecustomize"]
        took.append(max(int(line.split("|")[1]) for line in lines) / 1000)
    return statistics.median(took), min(took)


def serve_turns(row: str, folder: Path, requests: Connection) -> None:
    """Measure one row each time the parent process requests it.

    Each row has its own process, so the threads of a logger do not affect other rows.
    """
    try:
        step = ROWS[row][1](folder)
    except Exception as error:
        requests.send(f"{type(error).__name__}: {error}")
        return
    requests.send(None)
    number = 0
    while requests.recv():
        took, number = microseconds(step, number)
        requests.send(took)
    os._exit(0)  # skip the messages that the logger sends at exit


def steps(folder: Path) -> dict[str, list[float]]:
    """Return the microseconds that each row needs for ten values, in each batch. Skip unavailable rows.

    The rows are measured alternately.
    """
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    for row, (package, _) in ROWS.items():
        if importlib.util.find_spec(package) is None:
            print(f"{row}: skipped, because it is not installed")
            continue
        row_folder = folder / row.replace(" ", "-")
        row_folder.mkdir()
        pipes[row], theirs = context.Pipe()
        context.Process(target=serve_turns, args=(row, row_folder, theirs), daemon=True).start()
    for row, pipe in list(pipes.items()):
        problem = pipe.recv()
        if problem is not None:
            print(f"{row}: skipped, because it did not start ({problem})")
            del pipes[row]
    took: dict[str, list[float]] = {row: [] for row in pipes}
    for _ in range(ROUNDS):
        for row, pipe in pipes.items():
            pipe.send(True)
            took[row] += pipe.recv()
    for pipe in pipes.values():
        pipe.send(False)
    return took


def cold(folder: Path) -> dict[str, Costs]:
    """Return the cost that the probe adds to a step if the training evicts the probe's data from the caches.

    Each round runs four kinds of steps in random order: a baseline that calls nothing, an empty function (the
    control, which shows the measurement error), the probe, and the probe with the readings that it takes once
    a second. Each of the last three kinds is compared with the baseline. With steps of 50 ms, one step in
    twenty includes the readings. The work consists of arithmetic and copies, because a sleep would hide added
    time. The unit is processor time, on which other programs have less influence.
    """
    probe = Probe(folder, {"RANK": "0"})
    probe.samplers += [accelerator_memory, resident_memory]
    values, swept, target = list(range(2000)), bytes(SWEPT_BYTES), bytearray(SWEPT_BYTES)

    def work(times: int) -> None:
        target[:] = swept
        for _ in range(times):
            sum(values)

    begin = time.perf_counter()
    work(500)
    times = int(500 * WORK_SECONDS / (time.perf_counter() - begin)) or 1
    kinds = {"nothing": None, "control": nothing, "step": probe.step, "with readings": probe.step}
    probe.step(loss=1.0)
    draw = random.Random(1)
    added: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(COMPARED):
        spent = {}
        for kind in draw.sample(list(kinds), len(kinds)):
            probe._sampled_at = 0.0 if kind == "with readings" else time.time()
            call = kinds[kind]
            begin = time.thread_time()
            work(times)
            if call is not None:
                call(loss=1.25, grad_norm=0.5, learning_rate=1e-4)
            spent[kind] = time.thread_time() - begin
        for kind, seconds in spent.items():
            added[kind].append((seconds - spent["nothing"]) * 1e6)
    found = {kind: costs(differences) for kind, differences in added.items() if kind != "nothing"}
    plain, sampled, share = found["step"], found["with readings"], STEP_SECONDS / SAMPLE_SECONDS
    found["a step of 50 ms"] = Costs(
        plain.mean + share * (sampled.mean - plain.mean),
        math.hypot((1 - share) * plain.error, share * sampled.error),
    )
    return found


def rendering_milliseconds() -> tuple[float, int]:
    """Return the duration of a scrape in milliseconds and the number of series.

    All values of the ten thousand series change between two scrapes. The unit is processor time.
    """
    metrics = RunMetrics("bench")
    took = []
    for scrape in range(15):
        for rank in range(SERIES // SERIES_OF_A_RANK):
            values = {name: value + 0.37 * scrape for name, value in VALUES.items()}
            metrics.hooked(Record(rank, 1, 1.0, {**values, "step": float(scrape)}))
            metrics.stepped(rank, 1e9 + scrape)
        begin = time.thread_time()
        page = generate_latest(metrics.registry)
        took.append((time.thread_time() - begin) * 1000)
    series = sum(not line.startswith(b"#") for line in page.splitlines())
    return statistics.median(took), series


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        took = steps(folder)
        medians = {row: statistics.median(found) for row, found in took.items()}
        own_cost = medians["stallwatch probe"]
        print(f"\n{'ten values per step':38} {'median µs':>10} {'fastest':>8} {'probe is':>10}")
        for row, cost in medians.items():
            print(f"{row:38} {cost:10.2f} {min(took[row]):8.2f} {f'1/{cost / own_cost:.1f}':>10}")
        usual, least = import_milliseconds(folder)
        print(f"\nPython start: {usual:.1f} ms for the bootstrap, {least:.1f} ms in the fastest start")
        print(f"{COMPARED} steps of each kind with cold caches, minus steps without calls; % of 50 ms")
        for kind, costs in cold(folder).items():
            print(f"  {kind:16} {costs}")
        rendering, series = rendering_milliseconds()
        print(f"one scrape of {series:,} series: {rendering:.1f} ms")


if __name__ == "__main__":
    main()
