"""ZeRO-3 runs that end well: without problems, or with a trace cache that is rebuilt again and again.

With ``--changing-order``, the blocks run backwards in every fourth step, so DeepSpeed invalidates its trace
and prints that, while the training continues normally.
"""

import argparse
import time

import tiny
import torch
from torch import nn


class Reversible(tiny.Net):
    """Toy network whose blocks can run in either order."""

    def forward(self, features: torch.Tensor, backwards: bool = False) -> torch.Tensor:
        hidden = self.embed(features)
        for block in reversed(self.blocks) if backwards else self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--changing-order", action="store_true", help="let the order of the modules change")
parser.add_argument("--steps", type=int, default=40, help="optimizer steps (default: %(default)s)")
parser.add_argument("--pace", type=float, default=0.0, help="seconds slept a step in place of data loading")
options = parser.parse_args()

rank = tiny.start()
engine = tiny.prepare(Reversible(), tiny.config(log_trace_cache_warnings=True))
for step, (features, targets) in enumerate(tiny.batches(rank, options.steps), start=1):
    time.sleep(options.pace)
    loss = nn.functional.mse_loss(engine(features, options.changing_order and step % 4 == 0), targets)
    engine.backward(loss)
    engine.step()
    tiny.report(rank, step, options.steps, loss)
tiny.finish()
