"""Healthy data-parallel loops over gloo."""

from __future__ import annotations

import math
import random
from pathlib import Path

import torch.distributed as dist
from common import RANK, SEED, about, event, run
from loop import Loop
from plain import save_slowly


def steady() -> None:
    loop = Loop()
    loop.train(200)
    loop.finish()


def evaluation_on_rank_0() -> None:
    """Evaluate on rank 0 while the other ranks wait in a barrier."""
    loop = Loop()
    loop.train(60)
    if RANK == 0:
        loop.evaluate(about(80))
    dist.barrier()
    loop.train(30)
    loop.finish()


def evaluation_on_all_ranks() -> None:
    loop = Loop()
    loop.train(60)
    loop.evaluate(about(80))
    dist.barrier()
    loop.train(30)
    loop.finish()


def save_on_rank_0() -> None:
    loop = Loop()
    loop.train(60)
    if RANK == 0:
        save_slowly(loop, Path("checkpoint-60.pt"), about(75))
    dist.barrier()
    loop.train(30)
    loop.finish()


def uneven_steps() -> None:
    """Train with steps whose duration varies on each rank. The slowest rank determines the step time."""
    loop = Loop()
    chance = random.Random(10 * SEED + RANK)
    for _ in range(160):
        loop.step(pace=0.2 * math.exp(chance.gauss(0, 0.6)))
    loop.finish()


def paused_as_a_group() -> None:
    """Train while the runner of this program stops all processes of the run for a minute."""
    loop = Loop()
    loop.train(60)
    if RANK == 0:
        event("pause")
    loop.train(60)
    loop.finish()


if __name__ == "__main__":
    run(globals())
