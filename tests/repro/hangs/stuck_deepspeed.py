"""Two DeepSpeed ZeRO-3 ranks; after some steps, rank 1's reward function does not return."""

from __future__ import annotations

import time

import tiny
import torch

STEPS = 12


def reward(features: torch.Tensor, number: int) -> torch.Tensor:
    while number > STEPS and torch.distributed.get_rank() == 1:
        time.sleep(0.05)
    return features


def main() -> None:
    rank = tiny.start(timeout=600.0)  # longer than the report of any stall takes on a loaded machine
    engine = tiny.prepare(tiny.Net(), tiny.config())
    for number, (features, targets) in enumerate(tiny.batches(rank, 1000), 1):
        loss = torch.nn.functional.mse_loss(engine(reward(features, number)), targets)
        engine.backward(loss)
        engine.step()


if __name__ == "__main__":
    main()
