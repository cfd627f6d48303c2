"""What a training step costs: ten values through the probe and through what else people use for them.

    make bench-probe

All rows are measured in one run, in turns, so that a noisy machine is noisy for all. Loggers that are not
installed are left out. The import cost is that of the whole bootstrap in a fresh Python.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.probing import with_probe

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


def microseconds(step: Step, first: int) -> tuple[float, int]:
    """The time of one step, over a batch that takes about ``SECONDS``; and the number of the next."""
    number, begin = first, time.perf_counter()
    while (now := time.perf_counter()) - begin < SECONDS:
        for _ in range(20):
            number += 1
            step(number)
    return (now - begin) / (number - first) * 1e6, number


def import_milliseconds(folder: Path) -> float:
    """What the bootstrap adds to the start of a Python, by the interpreter's own account."""
    code = [sys.executable, "-X", "importtime", "-c", "pass"]
    took = []
    for _ in range(9):
        done = subprocess.run(code, env=with_probe(os.environ, folder), capture_output=True, text=True)
        own = [line for line in done.stderr.splitlines() if line.split("|")[-1].strip() == "sitecustomize"]
        took.append(max(int(line.split("|")[1]) for line in own) / 1000)
    return statistics.median(took)


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        steps: dict[str, Step] = {}
        for row, (package, make) in ROWS.items():
            if importlib.util.find_spec(package) is None:
                print(f"{row}: not installed, left out")
                continue
            own = folder / row.replace(" ", "-")
            own.mkdir()
            try:
                steps[row] = make(own)
            except Exception as error:
                print(f"{row}: does not start ({type(error).__name__}: {error}), left out")
        took: dict[str, list[float]] = {row: [] for row in steps}
        numbers = dict.fromkeys(steps, 0)
        for _ in range(ROUNDS):
            for row, step in steps.items():
                cost, numbers[row] = microseconds(step, numbers[row])
                took[row].append(cost)
        medians = {row: statistics.median(found) for row, found in took.items()}
        own_cost = medians["stallwatch probe"]
        print(f"\n{'ten values a step':38} {'median µs':>10} {'fastest':>8} {'probe is':>10}")
        for row, cost in medians.items():
            print(f"{row:38} {cost:10.2f} {min(took[row]):8.2f} {f'1/{cost / own_cost:.1f}':>10}")
        print(f"\nstart of a Python: {import_milliseconds(folder):.1f} ms for the bootstrap")
    sys.stdout.flush()
    os._exit(0)  # what the loggers still want to send or ask at exit is not measured here


if __name__ == "__main__":
    main()
