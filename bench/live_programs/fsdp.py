"""FSDP2 over gloo on the CPU."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from common import HOUR, RANK, about, event, run, say
from loop import WIDTH, Net
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

TOTAL = 5000


class Sharded:
    """A network whose layers are sharded over the ranks."""

    def __init__(self) -> None:
        dist.init_process_group("gloo", timeout=timedelta(minutes=30))
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        torch.manual_seed(0)
        self.model = Net()
        fully_shard(self.model.first, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.model.pause = 0.2
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=False)
        self.number = 0

    def train(self, steps: int) -> None:
        for _ in range(steps):
            loss = self.model(torch.randn(8, WIDTH)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.number += 1
            say(f"step: {self.number}/{TOTAL}  loss: {loss.item():.4f}  tps: 1,024  mfu: 31.02%")

    def evaluate(self, batches: int, seconds: float) -> None:
        self.model.eval()
        self.model.pause = seconds
        with torch.no_grad():
            for _ in range(batches):
                self.model(torch.randn(8, WIDTH))
        self.model.pause = 0.2
        self.model.train()

    def finish(self) -> None:
        say("training finished")
        dist.barrier()
        dist.destroy_process_group()


def steady() -> None:
    model = Sharded()
    model.train(220)
    model.finish()


def long_evaluation() -> None:
    model = Sharded()
    model.train(60)
    model.evaluate(40, about(80) / 40)
    model.train(30)
    model.finish()


def pack_sequences() -> None:
    event("hang")
    time.sleep(HOUR)


def rank_1_hangs() -> None:
    model = Sharded()
    model.train(70)
    if RANK == 1:
        pack_sequences()
    model.train(500)


if __name__ == "__main__":
    run(globals())
