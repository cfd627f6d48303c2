"""Failures of DeepSpeed on CPU ranks: its configuration, its engine, and ZeRO-3's partitioned parameters."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tiny  # noqa: I001 - comes first: it prepares the environment for DeepSpeed on the CPU
import deepspeed
import torch
from torch import nn


def steps(engine: object, rank: int, count: int = 5) -> None:
    """Run `count` ordinary steps."""
    for step, (features, targets) in enumerate(tiny.batches(rank, count), 1):
        loss = nn.functional.mse_loss(engine(features), targets)  # type: ignore[operator]
        engine.backward(loss)  # type: ignore[attr-defined]
        engine.step()  # type: ignore[attr-defined]
        tiny.report(rank, step, count, loss)


def batch_size_mismatch() -> None:
    """Configure a global batch that the ranks cannot divide."""
    tiny.start()
    tiny.prepare(tiny.Net(), tiny.config() | {"train_batch_size": 9, "train_micro_batch_size_per_gpu": 2})


def both_half_precisions() -> None:
    """Enable fp16 and bf16 at once."""
    tiny.start()
    tiny.prepare(tiny.Net(), tiny.config() | {"fp16": {"enabled": True}, "bf16": {"enabled": True}})


def config_twice() -> None:
    """Pass the configuration both as an argument and as a file."""
    tiny.start()
    model = tiny.Net()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write("{}")
        file.flush()
        args = argparse.Namespace(deepspeed_config=file.name, local_rank=0)
        deepspeed.initialize(
            args=args, model=model, config=tiny.config(), model_parameters=model.parameters()
        )


def loss_backward() -> None:
    """Call ``loss.backward()`` instead of ``engine.backward(loss)``, which the newest DeepSpeed accepts."""
    rank = tiny.start()
    engine = tiny.prepare(tiny.Net(), tiny.config())
    steps(engine, rank)
    for features, targets in tiny.batches(rank, 1):
        nn.functional.mse_loss(engine(features), targets).backward()
        engine.step()


def bare_weight() -> None:
    """Use an embedding made under zero.Init without an engine."""
    tiny.start()
    with deepspeed.zero.Init(config_dict_or_path=tiny.config()):
        teacher = nn.Embedding(100, 64)
    nn.functional.embedding(torch.ones(2, 3, dtype=torch.long), teacher.weight)


def load_into_partitioned() -> None:
    """Load a state dict into partitioned parameters."""
    tiny.start()
    whole = tiny.Net().state_dict()
    with deepspeed.zero.Init(config_dict_or_path=tiny.config()):
        model = tiny.Net()
    model.load_state_dict(whole)


def no_sync() -> None:
    """Accumulate gradients through ``no_sync`` under ZeRO-3."""
    rank = tiny.start()
    engine = tiny.prepare(tiny.Net(), tiny.config())
    steps(engine, rank)
    with engine.no_sync():
        pass


def nvme_without_libaio() -> None:
    """Offload parameters to NVMe on a machine without libaio."""
    tiny.start()
    with tempfile.TemporaryDirectory() as folder:
        offload = {"offload_param": {"device": "nvme", "nvme_path": folder}}
        tiny.prepare(tiny.Net(), tiny.config(**offload))


def save_without_gathering() -> None:
    """Save weights although ZeRO-3 is not configured to gather them."""
    rank = tiny.start()
    engine = tiny.prepare(tiny.Net(), tiny.config())
    steps(engine, rank)
    with tempfile.TemporaryDirectory() as folder:
        engine.save_16bit_model(folder)
    tiny.finish()


def stage_two_healthy() -> None:
    """Run a training that ends well."""
    rank = tiny.start()
    settings = tiny.config()
    settings["zero_optimization"] = {"stage": 2}
    steps(tiny.prepare(tiny.Net(), settings), rank, 20)
    tiny.finish()


def not_initialized() -> None:
    """Start without a process group, with a DeepSpeed that must not create one."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    model = tiny.Net()
    deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=tiny.config(), dist_init_required=False
    )
