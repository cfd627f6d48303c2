"""Data-parallel loops over gloo in which one rank fails the others."""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist
from common import HOUR, RANK, event, run
from loop import Loop

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
    """Whether a rank takes part depends on its own data: the mistake."""
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
    """Two groups, joined in another order on each rank."""
    loop = healthy_start()
    one, other = dist.new_group(), dist.new_group()
    if RANK == 0:
        event("mismatch")
        dist.all_reduce(torch.zeros(4), group=one)
        dist.barrier(group=other)
    else:
        dist.barrier(group=other)
        dist.all_reduce(torch.zeros(4), group=one)
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


if __name__ == "__main__":
    run(globals())
