"""Runs without a failure, with the noise that such runs print."""

from __future__ import annotations

import logging
import warnings

import torch
from loop import join, net, train
from torch.nn.parallel import DistributedDataParallel


def plain() -> None:
    """Run a loop that logs, warns and saves."""
    warnings.warn("the learning-rate scheduler was stepped before the optimizer", UserWarning, stacklevel=1)
    train(60)
    print("Saving model checkpoint to out/checkpoint-60")
    train(60)
    print("Training completed.")


def ddp() -> None:
    """Train two ranks under DistributedDataParallel, which warns about its own options."""
    join()
    train(30, model=DistributedDataParallel(net(), find_unused_parameters=True))
    torch.distributed.destroy_process_group()


def noisy() -> None:
    """Print texts with words of trouble that mean no trouble."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    log = logging.getLogger("rewards")
    for step in range(1, 31):
        if step % 5 == 0:
            log.info(
                "sample %d answered: 'RuntimeError: CUDA out of memory' is raised when memory is short", step
            )
        if step % 7 == 0:
            log.warning("retry 1/5 of https://metrics.example: connection timed out, will try again")
        print(f"step {step}/30 loss {2 / step + 0.5:.4f} errors 0 nan 0")


def trainer() -> None:
    """Run the Hugging Face trainer on a tiny model, with an evaluation and a save."""
    import tempfile

    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=16)
    tokens = torch.randint(0, 64, (64, 16))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=30, logging_steps=1, eval_strategy="steps", eval_steps=10, save_steps=15,
            per_device_train_batch_size=4, report_to=[], use_cpu=True,
        )  # fmt: skip
        Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows, eval_dataset=rows[:8]).train()
