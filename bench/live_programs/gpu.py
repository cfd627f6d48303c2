"""Loops on a GPU that wait for the device, for ``make gpu-check``."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from common import HOUR, RANK, WORLD, event, run, say
from torch import nn

CYCLES_PER_SECOND = 1_700_000_000  #: approximate clock rate of a GPU


class Loop:
    """Training steps on the device. If there are several ranks, their gradients are summed."""

    def __init__(self) -> None:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        if WORLD > 1:
            dist.init_process_group("nccl", timeout=timedelta(minutes=30))
        self.model = nn.Linear(1024, 1024).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.number = 0

    def train(self, steps: int) -> None:
        for _ in range(steps):
            loss = self.model(torch.randn(64, 1024, device="cuda")).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            if WORLD > 1:
                for parameter in self.model.parameters():
                    dist.all_reduce(parameter.grad)
            self.optimizer.step()
            self.number += 1
            say(f"step {self.number}/5000 loss {loss.item():.4f}")
            time.sleep(0.25)


def occupy(seconds: float) -> None:
    """Launch a kernel that does nothing for `seconds` seconds."""
    torch.cuda._sleep(int(seconds * CYCLES_PER_SECOND))


def long_kernel() -> None:
    """Run a step that computes for a minute while the host waits for the loss."""
    loop = Loop()
    loop.train(60)
    occupy(60)
    loop.train(30)
    say("training finished")


def stuck_on_the_device() -> None:
    event("wait")
    torch.cuda.synchronize()


def synchronising_wait() -> None:
    """Queue kernels that run for most of an hour, and make the host wait for them."""
    loop = Loop()
    loop.train(70)
    for _ in range(600):
        occupy(5)
    stuck_on_the_device()


def stream_hang() -> None:
    """Make one stream wait for a second stream, which has work for most of an hour."""
    loop = Loop()
    loop.train(70)
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        for _ in range(600):
            occupy(5)
    torch.cuda.current_stream().wait_stream(other)
    stuck_on_the_device()


def collapse() -> None:
    event("hang")
    time.sleep(HOUR)


def nccl_hang() -> None:
    loop = Loop()
    loop.train(70)
    if RANK == 1:
        collapse()
    loop.train(1000)


if __name__ == "__main__":
    run(globals())
