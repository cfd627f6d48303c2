"""Programs that train a tiny network with Lightning's Trainer."""

from __future__ import annotations

import time
from typing import Any

import lightning
import torch
from common import CHANCE, HOUR, about, event, run
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Vectors(Dataset[torch.Tensor]):
    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(16)


class Module(lightning.LightningModule):
    """A linear model with slow steps."""

    training_seconds = 0.25
    validation_seconds = 0.25

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layer(features)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
        time.sleep(self.training_seconds * CHANCE.uniform(0.9, 1.1))
        loss = self(batch).square().mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: torch.Tensor) -> None:
        time.sleep(self.validation_seconds)
        self.log("val_loss", self(batch).square().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def fit(module: Module, steps: int, validated: int = 0, every: int = 60, **options: Any) -> None:
    trainer = lightning.Trainer(
        **{
            "accelerator": "cpu",
            "devices": 1,
            "max_steps": steps,
            "val_check_interval": every if validated else None,
            "limit_val_batches": validated or 0,
            "num_sanity_val_steps": 0,
            "logger": False,
            "enable_checkpointing": False,
            "log_every_n_steps": 1,
            **options,
        }
    )
    loader = DataLoader(Vectors(8 * 5000), 8)
    trainer.fit(module, loader, DataLoader(Vectors(8 * 400), 8) if validated else None)


def steady() -> None:
    fit(Module(), 250)


def long_validation() -> None:
    module = Module()
    module.validation_seconds = about(120) / 40
    fit(module, 100, validated=40)


def long_validation_without_a_bar() -> None:
    module = Module()
    module.validation_seconds = about(120) / 40
    fit(module, 100, validated=40, enable_progress_bar=False)


class SlowEpochEnd(Module):
    def on_validation_epoch_end(self) -> None:
        time.sleep(about(40))


def slow_metric_from_the_first_validation_on() -> None:
    fit(SlowEpochEnd(), 130, validated=8, every=50)


def checkpoints() -> None:
    fit(
        Module(),
        250,
        callbacks=[ModelCheckpoint("checkpoints", every_n_train_steps=25, save_top_k=-1)],
        enable_checkpointing=True,
    )


def early_stopping() -> None:
    stopping = EarlyStopping("val_loss", patience=3, min_delta=100.0)
    fit(Module(), 5000, validated=8, every=40, callbacks=[stopping])


def accumulation() -> None:
    fit(Module(), 8, accumulate_grad_batches=64)


# ---------------------------------------------------------------- what fails


class Hangs(Module):
    def collect_statistics(self) -> None:
        event("hang")
        time.sleep(HOUR)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if batch_idx == 80:
            self.collect_statistics()
        return super().training_step(batch, batch_idx)


def hang_in_a_training_step() -> None:
    fit(Hangs(), 500)


class HangsAtValidation(Module):
    validations = 0

    def compute_metrics(self) -> None:
        if self.validations == 5:
            event("metric")
            time.sleep(HOUR)
        time.sleep(1.0)

    def on_validation_epoch_end(self) -> None:
        self.validations += 1
        self.compute_metrics()


def metric_hangs_at_the_5th_validation() -> None:
    fit(HangsAtValidation(), 500, validated=8, every=20)


class NoNumbers(Module):
    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if batch_idx == 80:
            event("nan")
        loss = super().training_step(batch, batch_idx)
        return loss * float("nan") if batch_idx >= 80 else loss


def nan() -> None:
    fit(NoNumbers(), 500)


class Raises(Module):
    def augment(self, batch: torch.Tensor) -> torch.Tensor:
        event("exception")
        return batch.reshape(3, 7)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return super().training_step(self.augment(batch) if batch_idx == 80 else batch, batch_idx)


def exception() -> None:
    fit(Raises(), 500)


if __name__ == "__main__":
    run(globals())
