"""A dummy loss over the parameters of a module, zero in value, that ZeRO-3 cannot differentiate.

The sum should give every parameter a gradient. Under ZeRO-3, the parameters are already partitioned in the
backward pass, so the gradient of the sum has the shape [0]. With ``--unused``, the module also takes no part
in the forward pass, and DeepSpeed finds the empty gradient in its reduction.
"""

import argparse

import tiny
import torch
from torch import nn

CODES = 12480  # a vocabulary of audio codes


class Speech(tiny.Net):
    """Toy network with an adapter that not every batch needs."""

    def __init__(self, unused: bool) -> None:
        super().__init__()
        self.adapter = nn.Linear(tiny.WIDTH, CODES)
        self.unused = unused

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.hidden(features)
        codes = 0.0 if self.unused else self.adapter(hidden).square().mean()
        dummy_loss = sum(parameter.sum() for parameter in self.adapter.parameters()) * 0.0
        return self.head(hidden), codes + dummy_loss


parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--unused", action="store_true", help="leave the adapter out of the forward pass")
options = parser.parse_args()

STEPS = 4
rank = tiny.start()
engine = tiny.prepare(Speech(options.unused), tiny.config())
for step, (features, targets) in enumerate(tiny.batches(rank, STEPS), start=1):
    predicted, extra = engine(features)
    loss = nn.functional.mse_loss(predicted, targets) + extra
    engine.backward(loss)
    engine.step()
    tiny.report(rank, step, STEPS, loss)
tiny.finish()
