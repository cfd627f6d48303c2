"""A small, typical training loop in plain PyTorch, on one rank or several."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from common import CHANCE, WORLD, say
from torch import nn

torch.set_num_threads(1)
WIDTH = 16


class Net(nn.Module):
    """A network of two layers whose forward pass takes a given time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 64), nn.Linear(64, 1)
        self.pause = 0.0

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        time.sleep(self.pause)
        return self.last(torch.relu(self.first(features)))


class Loop:
    """A model, its optimizer, and its training step.

    If there are several ranks, their gradients are averaged.
    """

    def __init__(self, pace: float = 0.25, total: int = 5000, every: int = 1) -> None:
        if WORLD > 1:
            dist.init_process_group("gloo", timeout=timedelta(minutes=30))
        torch.manual_seed(0)
        self.net = Net()
        self.model: Any = nn.parallel.DistributedDataParallel(self.net) if WORLD > 1 else self.net
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.pace, self.total, self.every, self.step_number = pace, total, every, 0

    def batch(self) -> torch.Tensor:
        return torch.randn(8, WIDTH)

    def step(
        self, features: torch.Tensor | None = None, pace: float | None = None, loss_factor: float = 1.0
    ) -> float:
        """Run a forward pass, a backward pass, and an update, and log the step."""
        self.net.pause = self.pace if pace is None else pace
        features = self.batch() if features is None else features
        loss = (self.model(features) - features.sum(1, keepdim=True)).square().mean() * loss_factor
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step_number += 1
        if self.step_number % self.every == 0:
            say(f"step {self.step_number}/{self.total} loss {loss.item():.4f} lr {1e-3:.2e}")
        return loss.item()

    def train(self, steps: int) -> None:
        """Run `steps` steps that take about the same time."""
        self.model.train()
        for _ in range(steps):
            self.step(pace=self.pace * CHANCE.uniform(0.9, 1.1))

    def train_unevenly(self, seconds: float, sigma: float) -> None:
        """Run steps for `seconds` seconds. The durations of the steps have a log-normal distribution."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.step(pace=self.pace * math.exp(CHANCE.gauss(0.0, sigma)))

    def evaluate(self, seconds: float, batch_seconds: float = 0.5) -> float:
        """Run forward passes in evaluation mode without gradients."""
        self.net.eval()
        self.net.pause = batch_seconds
        total = 0.0
        with torch.no_grad():
            for _ in range(int(seconds / batch_seconds)):
                total += self.net(self.batch()).mean().item()
        self.net.train()
        return total

    def finish(self) -> None:
        say("training finished")
        if WORLD > 1:
            dist.barrier()
            dist.destroy_process_group()
