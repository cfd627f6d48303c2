"""Shared parts of the cases: a toy network, a loop that logs like real trainers, ranks over gloo."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

for _stream in (sys.stdout, sys.stderr):
    _stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a killed run must not keep lines back


def net(width: int = 16) -> nn.Sequential:
    """Return a network of two layers that learns to reproduce its input."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))


def train(
    steps: int = 10,
    *,
    model: nn.Module | None = None,
    learning_rate: float = 0.02,
    clip: float = 1e9,
    at: int | None = None,
    then: Callable[[], object] | None = None,
) -> nn.Module:
    """Train and log as a Hugging Face trainer does; call ``then`` at step ``at``."""
    model = net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for step in range(1, steps + 1):
        features = torch.randn(8, 16)
        loss = (model(features) - features).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if rank() == 0:
            print(
                f"{{'loss': {loss.item():.4f}, 'grad_norm': {norm.item():.4f}, "
                f"'learning_rate': {learning_rate}, 'epoch': {step / steps:.2f}}}"
            )
        if step == at and then is not None:
            then()
    return model


def rank() -> int:
    """Return this process's rank; 0 without a launcher."""
    return int(os.environ.get("RANK", "0"))


def join(seconds: float = 60.0) -> int:
    """Join the process group over gloo and return the rank."""
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    return torch.distributed.get_rank()
