"""A ZeRO-3 run that does intentionally and correctly what looks like a mistake.

Parts of the model are in evaluation mode while it trains: a frozen tower, an adapter's frozen base, a
normalization with running statistics, and a teacher that is not frozen but runs without gradients. The loss
contains a sum over a parameter, taken in the forward pass of its own module. A second engine is the
reference.
"""

import argparse
import copy

import tiny
import torch
from torch import nn

parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
parser.add_argument("--steps", type=int, default=20)
options = parser.parse_args()


class Adapter(nn.Module):
    """Frozen layer in evaluation mode with a small trained layer beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(tiny.WIDTH, tiny.WIDTH).requires_grad_(False)
        self.low_rank = nn.Linear(tiny.WIDTH, tiny.WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.base(hidden) + self.low_rank(hidden)


class Scale(nn.Module):
    """Trained factor, and its distance from one: a sum over a parameter that is complete at that moment."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(tiny.WIDTH))

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return hidden * self.factor, (self.factor - 1).square().sum()


class Model(nn.Module):
    """The whole model."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(tiny.FEATURES, tiny.WIDTH), nn.GELU()).requires_grad_(False)
        self.norm = nn.BatchNorm1d(tiny.WIDTH)
        self.adapter = Adapter()
        self.teacher = nn.Linear(tiny.WIDTH, tiny.WIDTH)
        self.scale = Scale()
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(tiny.WIDTH, tiny.TARGETS)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.adapter(self.norm(self.tower(features)))
        with torch.no_grad():
            wanted = self.teacher(hidden)
        hidden, distance = self.scale(hidden)
        return self.head(self.drop(hidden)), distance + (hidden - wanted).square().mean()


rank = tiny.start()
model = Model()
reference = tiny.prepare(copy.deepcopy(model), tiny.config())
engine = tiny.prepare(model, tiny.config())
for step, (features, targets) in enumerate(tiny.batches(rank, options.steps), start=1):
    reference.eval()
    with torch.no_grad():
        expected, _ = reference(features)
    if step % 4 == 0:  # a sampling pass, and back to training mode
        engine.eval()
        with torch.no_grad():
            engine(features)
    engine.train()
    for part in (model.tower, model.norm, model.adapter.base, model.teacher):
        part.eval()
    predicted, extra = engine(features)
    loss = nn.functional.mse_loss(predicted, targets) + nn.functional.mse_loss(predicted, expected) + extra
    engine.backward(loss)
    engine.step()
    tiny.report(rank, step, options.steps, loss)
tiny.finish()
