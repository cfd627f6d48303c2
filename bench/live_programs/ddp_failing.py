"""Data-parallel loops over gloo in which one rank is at fault."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import torch
import torch.distributed as dist
from common import HOUR, RANK, event, run
from loop import WIDTH, Loop
from torch.utils.data import DataLoader, Dataset

STEPS = 70


def healthy_start() -> Loop:
    loop = Loop()
    loop.train(STEPS)
    return loop


def collapse() -> None:
    event("hang")
    time.sleep(HOUR)


def hang(odd: int) -> None:
    loop = healthy_start()
    if odd == RANK:
        collapse()
    loop.train(1000)


def rank_1_hangs() -> None:
    hang(1)


def rank_2_hangs() -> None:
    hang(2)


def balance() -> None:
    """Call an all-reduce on every rank except rank 1, as faulty user code can do."""
    if RANK != 1:
        dist.all_reduce(torch.zeros(4))


def rank_1_misses_a_collective() -> None:
    loop = healthy_start()
    others = dist.new_group()
    if RANK == 0:
        event("collective")
    balance()
    dist.barrier(group=others)
    loop.train(1000)


def mismatched_collectives() -> None:
    """Join the collectives of two groups in a different order on each rank."""
    loop = healthy_start()
    first, other = dist.new_group(), dist.new_group()
    if RANK == 0:
        event("mismatch")
        dist.all_reduce(torch.zeros(4), group=first)
        dist.barrier(group=other)
    else:
        dist.barrier(group=other)
        dist.all_reduce(torch.zeros(4), group=first)
    loop.train(1000)


def rank_1_gets(number: signal.Signals) -> None:
    loop = healthy_start()
    if RANK == 1:
        event(number.name)
        os.kill(os.getpid(), number)
    loop.train(1000)


def rank_1_is_stopped() -> None:
    rank_1_gets(signal.SIGSTOP)


def rank_1_is_killed() -> None:
    rank_1_gets(signal.SIGKILL)


def rank_1_straggles() -> None:
    """Make the steps of rank 1 longer and longer."""
    loop = healthy_start()
    if RANK == 0:
        event("straggler")
    for number in range(1000):
        loop.step(pace=0.25 + (min(0.02 * number, 0.4) if RANK == 1 else 0.0))


def out_of_memory() -> None:
    loop = healthy_start()
    if RANK == 1:
        forward()
    loop.train(1000)


def forward() -> None:
    event("oom")
    raise torch.cuda.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB of which"
        " 1.31 GiB is free. Process 4712 has 77.83 GiB memory in use."
    )


def score_samples(number: int) -> None:
    time.sleep(1.5)
    if number == 5:
        event("metric")
        time.sleep(HOUR)


def rank_0_hangs_in_the_5th_evaluation() -> None:
    """Block in the fifth evaluation on rank 0 while the other ranks wait in a barrier."""
    loop = Loop(0.2)
    for number in range(1, 6):
        loop.train(25)
        if RANK == 0:
            loop.evaluate(3)
            score_samples(number)
        dist.barrier()


class Images(Dataset[torch.Tensor]):
    """A dataset whose worker on rank 1 waits for a lock, starting at a given sample.

    The lock is never released.
    """

    def __init__(self) -> None:
        self._lock = multiprocessing.get_context("fork").Lock()

    def __len__(self) -> int:
        return 8 * 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 8 * STEPS and RANK == 1:
            event("worker")
            self._lock.acquire()
            self._lock.acquire()
        return torch.randn(WIDTH)


def loader_of_rank_1_hangs() -> None:
    loop = Loop()
    for features in DataLoader(Images(), 8, num_workers=1, multiprocessing_context="fork"):
        loop.step(features)


def rank_1_never_joins() -> None:
    """Make rank 1 wait for a dataset. Therefore, rank 1 never joins the process group."""
    if RANK == 1:
        fetch_dataset()
    Loop()


def fetch_dataset() -> None:
    event("start")
    time.sleep(HOUR)


if __name__ == "__main__":
    run(globals())
