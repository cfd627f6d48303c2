"""Train on several hosts and inject faults on demand.

    torchrun … training.py CONTROL LAYOUT

All hosts share the folder CONTROL. To inject a fault, write the file ``fault.json`` into this folder, with
content such as ``{"number": 3, "kind": "sleep", "rank": 1}``. In this example, rank 1 writes the file
``began-3``, performs the fault in its next step, and continues when the file ``healed-3`` exists. The file
``step`` contains the current step of rank 0, and ``pid-1`` contains the process ID of rank 1.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

STEP_SECONDS = 0.1
CONTROL = Path(sys.argv[1])
LAYOUT = sys.argv[2]

if "SLURM_PROCID" in os.environ and "RANK" not in os.environ:  # started by srun without torchrun
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
    os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
RANK = int(os.environ["RANK"])


class Faults:
    """The faults that are injected into this rank."""

    def __init__(self) -> None:
        self._seen = 0

    def due(self, *kinds: str) -> int:
        """If a fault of one of these kinds is due, record its start and return its number.

        Otherwise, return 0.
        """
        try:
            wanted = json.loads((CONTROL / "fault.json").read_text())
        except (OSError, ValueError):
            return 0
        number = int(wanted["number"])
        if number <= self._seen or wanted["rank"] != RANK or wanted["kind"] not in kinds:
            return 0
        self._seen = number
        (CONTROL / "began.new").write_text(repr(time.time()))
        (CONTROL / "began.new").rename(CONTROL / f"began-{number}")  # the lab never reads an incomplete file
        return number


def healed(number: int) -> bool:
    return (CONTROL / f"healed-{number}").exists()


class Shards(IterableDataset):  # type: ignore[type-arg]
    """A dataset that a worker of the data loader reads batch by batch."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        faults = Faults()
        while True:
            number = faults.due("loader")
            if number:
                self.read_shard(number)
            yield torch.ones(4, 8)

    def read_shard(self, number: int) -> None:
        while not healed(number):
            time.sleep(0.5)


def score(faults: Faults) -> None:
    """Wait for a reward from an external service, as in reinforcement learning."""
    number = faults.due("sleep")
    while number and not healed(number):
        time.sleep(0.5)


def forward(model: torch.nn.Module, batch: torch.Tensor, faults: Faults) -> torch.Tensor:
    if faults.due("stop"):
        os.kill(os.getpid(), signal.SIGSTOP)
    if faults.due("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    loss: torch.Tensor = model(batch).sum()
    return loss


def evaluate(group: dist.ProcessGroup) -> None:
    """Join the collective that every rank must join at the end of an epoch."""
    dist.barrier(group)


def gather_metrics(tensor: torch.Tensor) -> None:
    dist.all_gather([torch.empty_like(tensor) for _ in range(dist.get_world_size())], tensor)


def reduce_gradients(model: torch.nn.Module, group: dist.ProcessGroup | None, faults: Faults) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        if faults.due("other"):
            gather_metrics(parameter.grad)
        dist.all_reduce(parameter.grad, group=group)


class DataParallel:
    """Data-parallel training, in which all ranks average their gradients."""

    def __init__(self) -> None:
        self.epoch_group = dist.new_group()

    def step(self, model: torch.nn.Module, batch: torch.Tensor, faults: Faults) -> float:
        score(faults)
        loss = forward(model, batch, faults)
        loss.backward()  # type: ignore[no-untyped-call]
        if faults.due("skip"):
            evaluate(self.epoch_group)
        reduce_gradients(model, None, faults)
        return float(loss)


class Pipeline:
    """Pipeline-parallel training with two stages of two tensor-parallel ranks.

    The pipelines are replicated over all ranks.
    """

    def __init__(self) -> None:
        world = dist.get_world_size()
        self.epoch_group = dist.new_group()
        self.stage = RANK // 2 % 2
        for first in range(0, world, 2):
            group = dist.new_group([first, first + 1])
            if RANK in (first, first + 1):
                self.tensor = group
        for first in (base + shift for base in range(0, world, 4) for shift in (0, 1)):
            group = dist.new_group([first, first + 2])
            if RANK in (first, first + 2):
                self.pipeline, self.peer = group, first if first != RANK else first + 2
        for shift in range(4):
            group = dist.new_group(list(range(shift, world, 4)))
            if shift == RANK % 4:
                self.data = group

    def step(self, model: torch.nn.Module, batch: torch.Tensor, faults: Faults) -> float:
        if self.stage == 0:
            score(faults)
            loss = forward(model, batch, faults)
            self.reduce_activations(loss)
            dist.send(loss.detach().reshape(1), self.peer, group=self.pipeline)
            gradient = torch.empty(1)
            dist.recv(gradient, self.peer, group=self.pipeline)
        else:
            activations = torch.empty(1)
            dist.recv(activations, self.peer, group=self.pipeline)
            score(faults)
            loss = forward(model, batch, faults)
            self.reduce_activations(loss)
            dist.send(activations, self.peer, group=self.pipeline)
        loss.backward()  # type: ignore[no-untyped-call]
        if faults.due("skip"):
            evaluate(self.epoch_group)
        reduce_gradients(model, self.data, faults)
        norm = torch.ones(1)
        dist.all_reduce(norm)
        return float(loss)

    def reduce_activations(self, loss: torch.Tensor) -> None:
        dist.all_reduce(loss.detach(), group=self.tensor)


def main() -> None:
    (CONTROL / f"pid-{RANK}").write_text(str(os.getpid()))
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    layout = DataParallel() if LAYOUT == "dp" else Pipeline()
    batches = iter(DataLoader(Shards(), batch_size=None, num_workers=1, prefetch_factor=2))
    faults = Faults()
    for step in range(1, 1_000_000):
        batch = next(batches)
        optimizer.zero_grad()
        loss = layout.step(model, batch, faults)
        optimizer.step()
        if RANK == 0:
            (CONTROL / "step.new").write_text(str(step))
            (CONTROL / "step.new").replace(CONTROL / "step")
            if step % 20 == 0:
                print({"loss": loss, "step": step}, flush=True)
        if (CONTROL / "end").exists():
            break
        time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main()
