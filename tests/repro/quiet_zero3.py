"""A ZeRO-3 run whose log shows no steps, no losses, and no messages about the trace cache.

    torchrun --nproc-per-node 2 tests/repro/quiet_zero3.py [--steps 12] [--fail]

Every fourth step runs the blocks in another order, so DeepSpeed invalidates its trace; since 0.16.4 it prints
that only on request. The run writes its own counts at its end into ``--report FILE``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import tiny
import torch
from torch import nn


class Turning(tiny.Net):
    """Network that runs its blocks forwards or backwards."""

    def forward(self, features: torch.Tensor, backwards: bool) -> torch.Tensor:
        hidden = self.embed(features)
        for block in reversed(self.blocks) if backwards else self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--fail", action="store_true", help="end in an exception within backward")
    parser.add_argument("--report", type=Path, help="a folder for one JSON file a rank")
    parser.add_argument("--hold", type=Path, help="end only when this file is there")
    options = parser.parse_args()
    rank = tiny.start()
    engine = tiny.prepare(Turning(), tiny.config())
    losses = []
    for step, (features, targets) in enumerate(tiny.batches(rank, options.steps)):
        loss = nn.functional.mse_loss(engine(features, step % 4 == 3), targets)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    if options.report is not None:
        found = {"steps": engine.global_steps, "losses": losses}
        (options.report / f"rank{rank}.json").write_text(json.dumps(found))
    while options.hold is not None and not options.hold.exists():
        time.sleep(0.05)
    if options.fail:
        engine.backward(torch.ones(3))  # not a scalar, so DeepSpeed refuses it
    tiny.finish()


if __name__ == "__main__":
    main()
