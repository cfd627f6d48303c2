"""DeepSpeed ZeRO-1, ZeRO-2, and ZeRO-3 over gloo on the CPU."""

from __future__ import annotations

import os
import time
import warnings
from datetime import timedelta
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"
warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")

import torch  # noqa: E402 - must follow the two settings

torch.compile = lambda model=None, **_: (
    (lambda function: function) if model is None else model
)  # the programs need no compilation

import deepspeed  # noqa: E402
from common import HOUR, RANK, about, event, run, say  # noqa: E402
from loop import WIDTH, Net  # noqa: E402

TOTAL = 5000


class Engine:
    """A DeepSpeed engine for a small network, with a method for its training steps."""

    def __init__(self, stage: int) -> None:
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # prevents a compilation
        deepspeed.init_distributed(dist_backend="gloo", timeout=timedelta(minutes=30))
        torch.manual_seed(0)
        self.net = Net()
        self.net.pause = 0.2
        self.engine, *_ = deepspeed.initialize(
            model=self.net,
            model_parameters=self.net.parameters(),
            config={
                "train_micro_batch_size_per_gpu": 8,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
                "zero_optimization": {
                    "stage": stage,
                    "overlap_comm": False,
                    "stage3_param_persistence_threshold": 0,
                    "stage3_gather_16bit_weights_on_model_save": True,  # makes saving a collective
                },
            },
        )
        self.number = 0

    def train(self, steps: int) -> None:
        for _ in range(steps):
            features = torch.randn(8, WIDTH)
            loss = self.engine(features).square().mean()
            self.engine.backward(loss)
            self.engine.step()
            self.number += 1
            say(f"step {self.number}/{TOTAL} loss {loss.item():.4f}")

    def evaluate(self, batches: int, seconds: float) -> None:
        self.engine.eval()
        self.net.pause = seconds
        with torch.no_grad():
            for _ in range(batches):
                self.engine(torch.randn(8, WIDTH))
        self.net.pause = 0.2
        self.engine.train()

    def finish(self) -> None:
        say("training finished")
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def steady_zero1() -> None:
    training = Engine(1)
    training.train(200)
    training.finish()


def evaluation_zero2() -> None:
    training = Engine(2)
    training.train(60)
    training.evaluate(40, about(80) / 40)
    training.train(30)
    training.finish()


def evaluation_zero3() -> None:
    """Evaluate with ZeRO-3, in which each forward pass gathers the parameters from all ranks."""
    training = Engine(3)
    training.train(60)
    training.evaluate(40, about(80) / 40)
    training.train(30)
    training.finish()


def checkpoints_zero3() -> None:
    training = Engine(3)
    for _ in range(6):
        training.train(30)
        training.engine.save_checkpoint("checkpoints", tag=f"step-{training.number}")
        old = Path(f"checkpoints/step-{training.number - 60}")
        if RANK == 0 and old.exists():
            for file in old.iterdir():
                file.unlink()
            old.rmdir()
    training.finish()


# ---------------------------------------------------------------- what fails


def rewrite_prompts() -> None:
    event("hang")
    time.sleep(HOUR)


def rank_1_hangs(stage: int) -> None:
    training = Engine(stage)
    training.train(70)
    if RANK == 1:
        rewrite_prompts()
    training.train(500)


def rank_1_hangs_zero1() -> None:
    rank_1_hangs(1)


def rank_1_hangs_zero2() -> None:
    rank_1_hangs(2)


def rank_1_hangs_zero3() -> None:
    rank_1_hangs(3)


def rank_1_hangs_after_trace_cache_lines() -> None:
    """Block in the code of rank 1 after lines about the trace cache.

    These lines are not the cause of the hang.
    """
    training = Engine(3)
    for number in range(70):
        if number > 40:
            say(f"Invalidate trace cache @ step {number % 7}: expected module {number % 5}, but got module 3")
        training.train(1)
    if RANK == 1:
        rewrite_prompts()
    training.train(500)


def rank_0_saves_alone_zero3() -> None:
    """Save only on rank 0, although saving is a collective."""
    training = Engine(3)
    training.train(70)
    if RANK == 0:
        event("save")
        training.engine.save_16bit_model("out")
    else:
        torch.distributed.barrier()
    training.train(500)


def exception_on_rank_1_zero2() -> None:
    training = Engine(2)
    training.train(70)
    if RANK == 1:
        event("exception")
        raise ValueError("sample 4711 has 0 tokens")
    training.train(500)


if __name__ == "__main__":
    run(globals())
