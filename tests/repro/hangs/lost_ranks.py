"""Ranks that lose each other for good: ``lost_ranks.py skip|leave``, after some steps together.

``skip``: rank 1 leaves out a collective and waits in a collective of another group. ``leave``: rank 1 ends
with success while the other ranks wait for its results.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

STEPS = 40  # enough steps for the agent to learn the pace, although some are slow on a loaded machine
PACE = 0.05
WAIT = timedelta(seconds=600)  # longer than the report of any stall takes on a loaded machine


def step(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"step {number}/1000 loss {loss.item():.4f}", flush=True)
    time.sleep(PACE)


def balance(evaluators: dist.ProcessGroup) -> None:
    """Reduce on every rank but rank 1, by mistake."""
    if dist.get_rank() != 1:
        dist.all_reduce(torch.zeros(4))
    dist.barrier(group=evaluators)


def collect(store: dist.Store) -> None:
    """Wait for the results of all ranks; rank 1 ends without a result."""
    rank = dist.get_rank()
    if rank == 1:
        sys.exit(0)
    store.set(f"results-{rank}", "done")
    store.wait([f"results-{other}" for other in range(dist.get_world_size())], WAIT)


def main(how: str) -> None:
    dist.init_process_group("gloo", timeout=WAIT)
    evaluators = dist.new_group()
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(1, STEPS + 1):
        step(number, model, optimizer)
    if how == "skip":
        balance(evaluators)
    else:
        collect(dist.distributed_c10d._get_default_store())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
