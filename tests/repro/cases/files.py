"""Failures of data files, model files and checkpoints."""

from __future__ import annotations

import argparse
import io
import os
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from loop import net, train
from torch.utils.data import DataLoader, Dataset


class _Numbers(Dataset[torch.Tensor]):
    def __init__(self, deadly: bool = False) -> None:
        self.deadly = deadly

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.deadly and index == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(16) * index


def worker_killed() -> None:
    """Kill a loader's worker, as the kernel does when the host is out of memory."""
    for index, batch in enumerate(DataLoader(_Numbers(deadly=True), batch_size=4, num_workers=2)):
        print(f"step {index + 1}/16 loss {1 / (1 + batch.mean().item()):.4f}")


def data_file_missing() -> None:
    """Use a wrong path of the data."""
    with Path("data/train-00001-of-00008.jsonl").open() as file:
        print(len(file.readlines()))


def weights_only() -> None:
    """Load a checkpoint with an object of a user class, with the current default of torch.load."""
    train(5)
    buffer = io.BytesIO()
    torch.save({"model": net().state_dict(), "arguments": argparse.Namespace(seed=1)}, buffer)
    buffer.seek(0)
    torch.load(buffer)


def archive_cut_off() -> None:
    """Load a checkpoint whose writing was interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pytorch_model.bin"
        torch.save(net().state_dict(), path)
        path.write_bytes(path.read_bytes()[:2000])
        torch.load(path)


def safetensors_cut_off() -> None:
    """Load a safetensors file whose writing was interrupted."""
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file(net().state_dict(), path)
        path.write_bytes(path.read_bytes()[:100])
        load_file(path)


def shared_tensors() -> None:
    """Save tied weights, which safetensors refuses."""
    from safetensors.torch import save_file

    train(5)
    weight = torch.ones(4, 4)
    with tempfile.TemporaryDirectory() as folder:
        save_file({"embed.weight": weight, "head.weight": weight}, Path(folder) / "model.safetensors")


def disk_full() -> None:
    """Save a checkpoint to a full device."""
    model = train(10)
    with open("/dev/full", "wb") as file:  # noqa: PTH123
        torch.save(model.state_dict(), file)


def model_path_wrong() -> None:
    """Load a model from a missing folder, whose path is taken for a name on the Hub."""
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained("./checkpoints/qwen-sft/checkpoint-900")


def hub_unreachable() -> None:
    """Load a model on a node that cannot reach the Hub."""
    os.environ["HF_ENDPOINT"] = "https://localhost:1"
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained("some-team/some-model")


def pad_token_missing() -> None:
    """Pass a batch of two to a reward model without a padding token."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16)
    model = GPT2ForSequenceClassification(config)
    model(input_ids=torch.ones(2, 4, dtype=torch.long))


def argument_error() -> None:
    """Parse a command line with a misspelt option."""

    @dataclass
    class Arguments:
        learning_rate: float = 1e-5
        fp16: bool = False

    from transformers import HfArgumentParser

    HfArgumentParser(Arguments).parse_args_into_dataclasses(["--fp16", "s", "--learning_rate", "1e-5"])
