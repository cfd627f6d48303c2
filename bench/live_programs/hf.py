"""Programs that train a tiny language model with Hugging Face's Trainer."""

from __future__ import annotations

import time
from typing import Any

import torch
from common import HOUR, SEED, about, event, run
from language import Pace, model, tokenizer
from torch.utils.data import Dataset
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

PACE = Pace()


class Numbers(Dataset[dict[str, torch.Tensor]]):
    """A dataset whose sequences contain consecutive numbers."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(16) + index) % 200 + 3
        return {"input_ids": ids, "labels": ids.clone()}


def trainer(steps: int, evaluated: int = 8, metrics: Any = None, **arguments: Any) -> Trainer:
    """Return a trainer that uses two samples per batch and logs every step."""
    wanted = {
        "output_dir": "out",
        "max_steps": steps,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "seed": SEED,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 10,
        **arguments,
    }
    return Trainer(
        model=model(tokenizer(), PACE),
        args=TrainingArguments(**wanted),
        train_dataset=Numbers(2 * 5000),
        eval_dataset=Numbers(evaluated),
        compute_metrics=metrics,
    )


def steady() -> None:
    trainer(250).train()


def long_evaluation() -> None:
    hf_trainer = trainer(100, evaluated=120, eval_strategy="steps", eval_steps=60)
    PACE.evaluating = about(80, 0.5) / 60
    hf_trainer.train()


def long_evaluation_without_bars() -> None:
    hf_trainer = trainer(100, evaluated=20, eval_strategy="steps", eval_steps=60, disable_tqdm=True)
    PACE.evaluating = about(80, 0.5) / 10
    hf_trainer.train()


def slow_metrics(_: Any) -> dict[str, float]:
    time.sleep(about(40))
    return {"accuracy": 0.5}


def slow_metric_from_the_first_evaluation_on() -> None:
    trainer(130, metrics=slow_metrics, eval_strategy="steps", eval_steps=50).train()


def checkpoints_with_rotation() -> None:
    trainer(250, save_strategy="steps", save_steps=25, save_total_limit=2).train()


class SlowSave(TrainerCallback):
    """A callback that takes some time after each checkpoint, as an upload does."""

    def on_save(self, *_: Any, **__: Any) -> None:
        time.sleep(about(50))


def upload_after_a_checkpoint() -> None:
    hf_trainer = trainer(100, save_strategy="steps", save_steps=60)
    hf_trainer.add_callback(SlowSave())
    hf_trainer.train()


def early_stopping() -> None:
    """Train until early stopping ends the run, because no evaluation improves the loss by the threshold."""
    hf_trainer = trainer(
        5000,
        eval_strategy="steps",
        eval_steps=40,
        save_strategy="steps",
        save_steps=40,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
    )
    hf_trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=3, early_stopping_threshold=100.0))
    hf_trainer.train()


def gradient_accumulation() -> None:
    trainer(8, gradient_accumulation_steps=64).train()


def multi_epoch() -> None:
    """Train over several short epochs, each with newly shuffled data."""
    hf_trainer = trainer(-1, num_train_epochs=8)
    hf_trainer.train_dataset = Numbers(60)
    hf_trainer.train()


# ---------------------------------------------------------------- what fails


def compute_metrics(hangs_at: int) -> Any:
    calls = 0

    def compute_metrics(_: Any) -> dict[str, float]:
        nonlocal calls
        calls += 1
        time.sleep(1.0)
        if calls == hangs_at:
            event("metric")
            time.sleep(HOUR)
        return {"accuracy": 0.5}

    return compute_metrics


def metric_hangs_at_the_5th_evaluation() -> None:
    trainer(500, metrics=compute_metrics(5), eval_strategy="steps", eval_steps=20).train()


def metric_hangs_at_the_8th_evaluation() -> None:
    trainer(500, metrics=compute_metrics(8), eval_strategy="steps", eval_steps=15).train()


class Hangs(TrainerCallback):
    """A user's callback that never returns."""

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        if state.global_step == 80:
            self.push_metrics()

    def push_metrics(self) -> None:
        event("callback")
        time.sleep(HOUR)


def callback_hangs() -> None:
    hf_trainer = trainer(500)
    hf_trainer.add_callback(Hangs())
    hf_trainer.train()


class Broken(Numbers):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        sample = super().__getitem__(index)
        if index >= 2 * 60:
            event("exception")
            return {"input_ids": sample["input_ids"]} | {"labels": sample["labels"][:-1]}
        return sample


def labels_that_do_not_fit() -> None:
    hf_trainer = trainer(500)
    hf_trainer.train_dataset = Broken(2 * 5000)
    hf_trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(hf_trainer.train_dataset)  # type: ignore[method-assign]
    hf_trainer.train()


class Diverges(TrainerCallback):
    """A callback that sets the weights to NaN, starting at a given step."""

    def on_step_end(self, _: Any, state: Any, *__: Any, model: Any, **___: Any) -> None:
        if state.global_step == 80:
            event("nan")
            with torch.no_grad():
                next(model.parameters()).fill_(float("nan"))


def nan() -> None:
    hf_trainer = trainer(500, logging_nan_inf_filter=False)
    hf_trainer.add_callback(Diverges())
    hf_trainer.train()


def nan_that_the_filter_hides() -> None:
    hf_trainer = trainer(500, logging_steps=50)
    hf_trainer.add_callback(Diverges())
    hf_trainer.train()


if __name__ == "__main__":
    run(globals())
