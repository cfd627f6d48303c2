"""Training loops with Accelerate, on one rank or two."""

from __future__ import annotations

import time
from typing import Any

import torch
from accelerate import Accelerator
from common import HOUR, RANK, about, event, run, say
from loop import WIDTH, Net
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


class Prepared:
    """The model, the optimizer, and the loader that ``accelerator.prepare`` returned."""

    def __init__(self, accumulation: int = 1) -> None:
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
        self.net = Net()
        self.net.pause = 0.25
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        loader = DataLoader(TensorDataset(torch.randn(8 * 4000, WIDTH)), 8, shuffle=True)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(self.net, optimizer, loader)
        self.batches = iter(self.loader)

    def train(self, steps: int, hook: Any = None) -> None:
        self.model.train()
        bar = tqdm(range(steps), disable=RANK != 0)
        for number in bar:
            (features,) = next(self.batches)
            with self.accelerator.accumulate(self.model):
                loss = self.model(features).square().mean()
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
            bar.set_postfix(loss=f"{loss.item():.4f}")
            if hook is not None:
                hook(number)

    def evaluate(self, batches: int, seconds: float) -> None:
        self.model.eval()
        self.net.pause = seconds
        for _ in range(batches):
            with torch.no_grad():
                predicted = self.model(torch.randn(8, WIDTH))
            self.accelerator.gather_for_metrics(predicted)
        self.net.pause = 0.25

    def finish(self) -> None:
        self.accelerator.wait_for_everyone()
        say("training finished")
        self.accelerator.end_training()


def steady() -> None:
    prepared = Prepared()
    prepared.train(220)
    prepared.finish()


def gathered_evaluation() -> None:
    prepared = Prepared()
    prepared.train(60)
    prepared.evaluate(40, about(80) / 40)
    prepared.train(30)
    prepared.finish()


def accumulation() -> None:
    prepared = Prepared(accumulation=32)
    prepared.train(32 * 12)
    prepared.finish()


def save_state() -> None:
    prepared = Prepared()
    for number in range(8):
        prepared.train(25)
        prepared.accelerator.save_state(f"state-{number}")
    prepared.finish()


# ---------------------------------------------------------------- what fails


def refresh_prompts() -> None:
    event("hang")
    time.sleep(HOUR)


def rank_1_hangs() -> None:
    prepared = Prepared()

    def hook(number: int) -> None:
        if number == 70 and RANK == 1:
            refresh_prompts()

    prepared.train(500, hook)


def rank_1_leaves_the_gather_out() -> None:
    """On rank 1, skip the gather, as if this rank had filtered out all of its last predictions."""
    prepared = Prepared()
    prepared.train(70)
    if RANK == 0:
        event("gather")
        prepared.accelerator.gather(torch.zeros(4))
    prepared.accelerator.wait_for_everyone()
    prepared.train(500)


def exception_on_rank_1() -> None:
    prepared = Prepared()

    def hook(number: int) -> None:
        if number == 70 and RANK == 1:
            event("exception")
            raise KeyError("labels")

    prepared.train(500, hook)


if __name__ == "__main__":
    run(globals())
