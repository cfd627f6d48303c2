"""ZeRO-3 invalidates its trace cache in a healthy run, once for each possible reason.

Step 4 runs the blocks in another order: a mismatch. Two passes without gradients follow, of which the first
is recorded and the second uses one module more: the recorded trace is short. Step 12 removes DeepSpeed's
hooks, as a trainer does to generate, and installs them again. DeepSpeed's version and ``--messages`` decide
whether it prints messages.
"""

from __future__ import annotations

import argparse
from typing import Any

import deepspeed
import tiny
import torch
from torch import nn


class Net(tiny.Net):
    """Toy network whose blocks can run in either order, and whose head can run twice."""

    def forward(self, features: torch.Tensor, backwards: bool = False, heads: int = 1) -> torch.Tensor:
        hidden = self.embed(features)
        for block in reversed(self.blocks) if backwards else self.blocks:
            hidden = block(hidden)
        return torch.stack([self.head(hidden) for _ in range(heads)]).mean(0)


def rehook(engine: Any, features: torch.Tensor) -> None:
    """Gather the weights, remove the hooks, use the bare module, and install the hooks again."""
    offload = engine.optimizer.parameter_offload
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())), torch.no_grad():
        for hook in (*offload.forward_hooks, *offload.backward_hooks):
            hook.remove()
        offload.forward_hooks, offload.backward_hooks = [], []
        engine.module(features)
    register = getattr(offload, "_register_deepspeed_module", None)  # its name since DeepSpeed 0.16.4
    (register or offload._register_hooks_recursively)(offload.module)


parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--messages", action="store_true", help="ask DeepSpeed for its messages")
options = parser.parse_args()

STEPS = 16
rank = tiny.start()
asked = {"log_trace_cache_warnings": True} if options.messages else {}
engine = tiny.prepare(Net(), tiny.config(**asked))
for step, (features, targets) in enumerate(tiny.batches(rank, STEPS), start=1):
    if step == 5:
        engine.eval()
        with torch.no_grad():
            engine(features)
            engine(features, heads=2)
        engine.train()
    if step == 12:
        rehook(engine, features)
    loss = nn.functional.mse_loss(engine(features, backwards=step == 4), targets)
    engine.backward(loss)
    engine.step()
    tiny.report(rank, step, STEPS, loss)
tiny.finish()
