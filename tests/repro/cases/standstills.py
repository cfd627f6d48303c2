"""Ranks that diverge: one waits for data that never comes, or routes no token to an expert."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tiny  # comes first, because it prepares the environment for DeepSpeed on the CPU
import torch
from loop import join, net, rank
from torch import nn

FEED_UNTIL = 40  #: steps after which rank 1 gets no more data
NOTES = 45.0  #: seconds between two notes of the memory in use
NARROW_FROM = 13  #: step from which all samples of rank 1 are alike


def silent_hang() -> None:
    """Let rank 1 read from a pipe without a writer, while rank 0 waits for it in a collective.

    The collective's timeout is an hour. Until the end, a thread prints the memory in use; then it ends all
    processes with SIGKILL, so that the log just stops.
    """
    join(seconds=3600)
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="%(asctime)s - %(levelname)s - %(message)s"
    )
    pids = torch.zeros(2, dtype=torch.int64)
    pids[rank()] = os.getpid()
    torch.distributed.all_reduce(pids)
    if rank() == 0:
        threading.Thread(target=_watch, args=(pids.tolist(),), daemon=True).start()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step, features in enumerate(_fed(), 1):
        loss = (model(features) - features).pow(2).mean()
        loss.backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        if rank() == 0:
            logging.info("step %d/2000 loss %.4f", step, loss.item())


def _fed() -> Iterator[torch.Tensor]:
    """Yield batches; from a certain step on, rank 1 waits for the thread that prepares them."""
    for step in range(1, 2001):
        if rank() == 1 and step > FEED_UNTIL:
            with tempfile.TemporaryDirectory() as folder:
                os.mkfifo(pipe := Path(folder) / "samples")
                pipe.open("rb").read()
        time.sleep(0.1)
        yield torch.randn(8, 16)


def _watch(pids: list[int]) -> None:
    """Print the memory in use, and kill the run after a time limit."""
    for _ in range(2):
        time.sleep(NOTES)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        logging.info("host memory of rank 0: %.0f MiB", used)
    time.sleep(2)  # time for the launcher to forward the note
    for pid in (os.getppid(), pids[1], pids[0]):
        os.kill(pid, signal.SIGKILL)


class ToySparseMoeBlock(nn.Module):
    """Experts behind a router; only experts with tokens run, as in the code of many models."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(tiny.WIDTH, experts, bias=False)
        self.experts = nn.ModuleList(tiny.Block() for _ in range(experts))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        weights = self.gate(hidden).softmax(-1)
        best, chosen = weights.max(-1)
        mixed = torch.zeros_like(hidden)
        for index in chosen.unique().tolist():
            sent = chosen == index
            mixed[sent] = best[sent].unsqueeze(-1) * self.experts[index](hidden[sent])
        return hidden + mixed


class ToyMoe(nn.Module):
    """A mixture-of-experts block between two projections."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(tiny.FEATURES, tiny.WIDTH)
        self.moe = ToySparseMoeBlock()
        self.head = nn.Linear(tiny.WIDTH, tiny.TARGETS)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.moe(self.embed(features)))


def experts_differ() -> None:
    """Route no token to an expert on one rank, which then does not gather it under ZeRO-3."""
    number = tiny.start(timeout=8)
    settings = tiny.config(log_trace_cache_warnings=True)
    engine = tiny.prepare(ToyMoe(), settings)
    if number == 0:
        print(engine.module)
    samples = torch.Generator().manual_seed(number)
    for step in range(1, 31):
        features = torch.randn(256, tiny.FEATURES, generator=samples)
        if number == 1 and step >= NARROW_FROM:
            features = features[:1].expand(256, -1)
        loss = nn.functional.mse_loss(engine(features), features[:, : tiny.TARGETS])
        engine.backward(loss)
        engine.step()
        tiny.report(number, step, 30, loss)
    tiny.finish()
