"""Measure the cost of the probe's hooks per step of a plain loop, compared with a step that has no hooks.

    python bench/step_cost.py

A step consists of a batch of a data loader, a forward pass, ten collectives, a backward pass, and an
optimizer step. The step calls replacements that have the same interface as torch: once with the probe's hooks
and once without hooks, in the same process. All kinds of steps come in random order. Between two steps, the
benchmark fills the caches with other data, as training does. The unit is processor time, on which other
programs have less influence.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from stallwatch_exporter.probe.api import Probe

WORK_SECONDS = 0.005  # seconds of work before each step; it makes the caches as cold as 50 ms of work would
STEP_SECONDS = 0.05  # duration of the training step that the costs are compared to
COMPARED = 1500  # number of measurements of each kind of step
SWEPT_BYTES = 4 << 20  # bytes that the work copies to evict all other data from the caches of a core
FURTHER = 20  # number of additional batches in a step with several batches
WARM_UP = 300  # number of warm-up steps, because each of the first steps writes a record


class Costs(NamedTuple):
    """The processor time that is added to a step, in microseconds, and the error of this value."""

    mean: float
    error: float

    def __str__(self) -> str:
        share = 1e-4 / STEP_SECONDS  # percent of a step
        microseconds = f"{self.mean:+6.1f} ± {self.error:.1f} µs"
        return f"{microseconds}, {self.mean * share:+.3f} ± {self.error * share:.3f} %"


def costs(differences: list[float]) -> Costs:
    """Return the mean of the middle half of the differences, without outliers, and the error of this mean."""
    differences.sort()
    middle = differences[len(differences) // 4 : -(len(differences) // 4)]
    # Error of an interquartile mean, if the differences are roughly normal.
    spread = (middle[-1] - middle[0]) / 1.349
    return Costs(statistics.mean(middle), 1.09 * spread / len(differences) ** 0.5)


class Work:
    """The work between two calls of the probe, as in training code. It consists of arithmetic and copies.

    The work is not a sleep, because a sleep would hide added time.
    """

    def __init__(self) -> None:
        self._values, self._swept = list(range(2000)), bytes(SWEPT_BYTES)
        self._target = bytearray(SWEPT_BYTES)
        begin = time.perf_counter()
        self._do(500)
        self._times = int(500 * WORK_SECONDS / (time.perf_counter() - begin)) or 1

    def __call__(self) -> None:
        self._do(self._times)

    def _do(self, times: int) -> None:
        self._target[:] = self._swept
        for _ in range(times):
            sum(self._values)


class Library:
    """Replacements for the parts of torch that a step calls. They have the same interface."""

    def __init__(self) -> None:
        hooks: list[Callable[..., None]] = []

        class Batches:
            _num_yielded = 0

            def __iter__(self) -> Batches:
                return self

            def __next__(self) -> int:
                self._num_yielded += 1
                return 1

        class Loader:
            def __iter__(self) -> Iterator[int]:
                return Batches()

        class Tensor:
            device = SimpleNamespace(type="cpu")

            def backward(self) -> None: ...

            def numel(self) -> int:
                return 1

            def detach(self) -> float:
                return 0.5

        class Module:
            training = True

            def __call__(self, _: int) -> Tensor:
                return loss

            def train(self, mode: bool = True) -> None: ...

            def eval(self) -> None: ...

        class Optimizer:
            param_groups: tuple[dict[str, Any], ...] = ({"lr": 0.1, "params": ()},)

            def step(self) -> None:
                for hook in hooks:
                    hook(self, (), {})

        loss = Tensor()
        self.classes = SimpleNamespace(
            DataLoader=Loader, _BaseDataLoaderIter=Batches, Tensor=Tensor, Module=Module
        )
        self.register = hooks.append
        self._batches, self._model, self._optimizer = iter(Loader()), Module(), Optimizer()

    def start(self) -> None:
        """Begin an epoch."""
        self._batches = iter(self.classes.DataLoader())

    def step(self, further: int = 0) -> None:
        """Run one step with `further` batches in addition to the first."""
        for number, batch in enumerate(self._batches):
            if number == further:
                loss = self._model(batch)
                break
        for _ in range(10):
            collective()
        loss.backward()
        self._optimizer.step()


def collective() -> None:
    """Do nothing in place of a collective. Collectives have no hook, because torch counts them itself."""


def watched(probe: Probe) -> Library:
    """Return a library with the hooks of the probe. In an earlier version, some hooks can be missing."""
    library, package = Library(), "stallwatch_exporter.probe.hooks"
    for name in ("losses", "batches", "model_modes"):
        try:
            hook = import_module(f"{package}.{name}")
        except ModuleNotFoundError:
            continue
        hook.install(library.classes, probe)
    hook = import_module(f"{package}.torch")
    hook.report_versions = lambda _: None
    hook.install(SimpleNamespace(register_optimizer_step_post_hook=library.register), probe)
    return library


def step_costs(folder: Path) -> dict[str, Costs]:
    """Return the hooks' cost for a step without a record, a step with a record, and an additional batch."""
    probe = Probe(folder, {"RANK": "0"})
    ours, plain, work = watched(probe), Library(), Work()
    ours.start()
    plain.start()
    for _ in range(WARM_UP):
        ours.step()
    kinds = {
        "plain": lambda: plain.step(),
        "control": lambda: plain.step(),
        "a step": lambda: ours.step(),
        "a step with a record": lambda: ours.step(),
        "plain, further": lambda: plain.step(FURTHER),
        "further": lambda: ours.step(FURTHER),
    }
    draw = random.Random(1)
    spent: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(COMPARED):
        for kind in draw.sample(list(kinds), len(kinds)):
            now = probe.clock() if hasattr(probe, "clock") else time.time()
            if hasattr(probe, "due_at"):
                probe.due_at = 0.0 if kind == "a step with a record" else now + 1.0
            probe._sampled_at = now
            work()
            begin = time.thread_time()
            kinds[kind]()
            spent[kind].append((time.thread_time() - begin) * 1e6)

    def added(kind: str, to: str) -> list[float]:
        return [item - other for item, other in zip(spent[kind], spent[to], strict=True)]

    batches = zip(added("further", "plain, further"), added("a step", "plain"), strict=True)
    return {
        "control": costs(added("control", "plain")),
        "a step": costs(added("a step", "plain")),
        "with a record": costs(added("a step with a record", "plain")),
        "a further batch": costs([(more - item) / FURTHER for more, item in batches]),
    }


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print(f"{COMPARED} steps of each kind with cold caches, minus the same steps without hooks; % of 50 ms")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        for kind, cost in step_costs(Path(name)).items():
            print(f"  {kind:16} {cost}")


if __name__ == "__main__":
    main()
