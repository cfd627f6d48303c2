"""Shared parts of all reproductions: DeepSpeed on the CPU, a toy network and toy data.

Importing this module prepares the environment for DeepSpeed on CPU ranks over gloo, so it comes first.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Print the warning once instead of six times a step: torch 2.13 deprecates collectives that DeepSpeed 0.19
# calls.
warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")

import torch  # noqa: E402

# DeepSpeed's Muon decorates functions with torch.compile when an engine is made, and that alone imports the
# compiler: a third of a rank's start. These programs compile nothing.
if "REPRODUCE_WITH_COMPILER" not in os.environ:
    torch.compile = lambda model=None, **_: (lambda function: function) if model is None else model

import deepspeed  # noqa: E402
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig  # noqa: E402
from torch import nn  # noqa: E402

WIDTH = 64
FEATURES, TARGETS = 16, 8


class Block(nn.Module):
    """A residual feed-forward block."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(nn.functional.gelu(self.up(self.norm(hidden))))


class Net(nn.Module):
    """Some blocks between two projections; the network learns to return a part of its input."""

    def __init__(self, outputs: int = TARGETS) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, outputs)

    def hidden(self, features: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(features)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(features))


def config(*, learning_rate: float = 1e-3, **zero: Any) -> dict[str, Any]:
    """Return a ZeRO-3 configuration that really partitions these small parameters, with `zero` on top.

    DeepSpeed before 0.16.4 always prints its trace-cache messages, and refuses the key that requests them.
    """
    if "log_trace_cache_warnings" not in DeepSpeedZeroConfig.__annotations__:
        zero.pop("log_trace_cache_warnings", None)
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": learning_rate, "torch_adam": True}},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": False,
            "reduce_bucket_size": 100_000,
            "stage3_param_persistence_threshold": 0,  # otherwise parameters of this size are not partitioned
            "stage3_prefetch_bucket_size": 20_000,
            "stage3_max_live_parameters": 100_000,
            "stage3_max_reuse_distance": 100_000,
            **zero,
        },
    }


def start(timeout: float = 60.0, seed: int = 0) -> int:
    """Join the process group over gloo and return the rank."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a killed run must not keep lines back
    # The shared-memory all-reduce would be compiled at start; without it, no compiler is needed.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", timeout=timedelta(seconds=timeout))
    torch.manual_seed(seed)
    rank = torch.distributed.get_rank()
    if rank == 0:
        print(f"torch {torch.__version__}, deepspeed {deepspeed.__version__}, 2 ranks over gloo on the CPU")
    return rank


def prepare(model: nn.Module | None, settings: dict[str, Any]) -> Any:
    """Return the DeepSpeed engine around the model."""
    parameters = None if model is None else model.parameters()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, config=settings)
    return engine


def batches(rank: int, count: int) -> Any:
    """Yield `count` random batches, different on every rank: features and the part of them to predict."""
    generator = torch.Generator().manual_seed(rank)
    for _ in range(count):
        features = torch.randn(4, FEATURES, generator=generator)
        yield features, features[:, :TARGETS]


def report(rank: int, step: int, steps: int, loss: torch.Tensor) -> None:
    """Print the usual line of a training loop."""
    print(f"rank {rank} step {step}/{steps} loss {loss.item():.4f}")


def wait_for(file: Path | None) -> None:
    """Wait until this file exists; return at once without a file."""
    while file is not None and not file.exists():
        time.sleep(0.05)


def finish() -> None:
    """Leave the process group in order."""
    print("training finished")
    torch.distributed.destroy_process_group()
