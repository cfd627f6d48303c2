"""The transformers Trainer under ZeRO-3, with a failure or an error at its first checkpoint only.

    torchrun --nproc-per-node 1 tests/repro/saving_trainer.py [--swap | --not-gathered | --empty]

``--swap``: its ``save_model`` puts the bare policy in the engine's place during the save, as trainers with
two networks in one model do. ``--not-gathered``: ZeRO-3 is not configured to gather weights on save.
``--empty``: custom code saves the adapter in its partitioned state between two steps.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import tiny
import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
parser.add_argument("--swap", action="store_true")
parser.add_argument("--not-gathered", action="store_true")
parser.add_argument("--empty", action="store_true")
parser.add_argument("--hold", type=Path, help="make the second step only when this file is there")
options = parser.parse_args()
STEPS = 4


class PolicyAndValue(nn.Module):
    """Both networks of an actor-critic trainer in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = tiny.Net()
        self.value_model = tiny.Net(outputs=1)

    def forward(self, features: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        error = nn.functional.mse_loss(self.policy(features), targets)
        return {"loss": error + self.value_model(features).square().mean()}


class PolicySaver(Trainer):
    """Trainer that saves the policy alone, although only the engine has its weights."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        both, engine = self.model, self.deepspeed
        self.model = self.deepspeed = both.policy
        super().save_model(output_dir, _internal_call)
        self.model, self.deepspeed = both, engine


class Between(TrainerCallback):
    """Callback that acts between the first and the second step."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step == 1:
            if options.empty:
                torch.save(model.policy.head.state_dict(), Path(args.output_dir) / "head.bin")
            tiny.wait_for(options.hold)


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The batches of the other programs, row by row."""

    def __init__(self) -> None:
        self._rows = [
            {"features": row, "targets": goal}
            for features, targets in tiny.batches(0, STEPS)
            for row, goal in zip(features, targets, strict=True)
        ]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self._rows[index]


tiny.start()
# Without an accelerator, accelerate finds no backend: accelerate/state.py, PartialState._prepare_backend.
PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_CPU)
settings = tiny.config(stage3_gather_16bit_weights_on_model_save=not options.not_gathered)
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(prefix="saving-"),
    per_device_train_batch_size=4,
    max_steps=STEPS,
    logging_steps=1,
    learning_rate=1e-3,
    save_strategy="steps",
    save_steps=2,
    report_to=[],
    deepspeed=settings,
    remove_unused_columns=False,
)
trainer = (PolicySaver if options.swap else Trainer)(
    model=PolicyAndValue(), args=arguments, train_dataset=Rows(), callbacks=[Between()]
)
trainer.train()
tiny.finish()
