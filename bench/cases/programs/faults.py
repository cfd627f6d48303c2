"""Run a small training program that fails in a chosen way: ``python faults.py SCENARIO``.

``STALLWATCH_BENCH_SEED`` determines the style of the log and the step of the failure. Most failures are real,
because the libraries raise the exceptions, and the kernel kills the processes. If a failure requires a GPU,
the program itself raises the exception (``raised``), and the run is labeled re-enacted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
SEED = int(os.environ.get("STALLWATCH_BENCH_SEED", "1"))
CHANCE = random.Random(SEED)
STEPS = CHANCE.choice([12, 30, 60, 110])
TOTAL = CHANCE.choice([500, 1200, 4000])
STYLE = SEED % 7
torch.set_num_threads(1)
for _stream in (sys.stdout, sys.stderr):
    _stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def say(step: int, loss: float, total: int) -> None:
    """Print the step in the style of one of seven trainers."""
    if RANK:
        return
    if STYLE == 0:
        print(f"step {step}/{total} | loss {loss:.4f} | lr 3.00e-04 | tok/s {48000 + step % 97}")
    elif STYLE == 1:
        print(
            {
                "loss": round(loss, 4),
                "grad_norm": 0.71,
                "learning_rate": 3e-4,
                "epoch": round(step / total, 2),
            }
        )
    elif STYLE == 2:
        logging.info("[train] global_step=%d train/loss=%.5f", step, loss)
    elif STYLE == 3:
        print(f"Epoch: [0]  [{step:>4}/{total}]  eta: 0:12:31  loss: {loss:.4f}  time: 0.25  data: 0.001")
    elif STYLE == 4:
        bar = "█" * (10 * step // total)
        sys.stderr.write(
            f"\rTraining: {100 * step // total:3d}%|{bar:10}| {step}/{total} [00:{step % 60:02d}<05:00]"
        )
    elif STYLE == 5:
        print(f"iter {step}: loss {loss:.4f}, time 251.20ms, mfu 12.10%")
    else:
        print(f"{step}\t{loss:.6f}")


def net() -> nn.Module:
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))


def train(
    steps: int = STEPS, model: nn.Module | None = None, total: int = TOTAL, factor: float = 1.0
) -> nn.Module:
    logging.basicConfig(
        level=logging.INFO, stream=sys.stdout, format="%(asctime)s | %(levelname)s | %(message)s"
    )
    model = net() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(1, steps + 1):
        features = torch.randn(8, 16)
        loss = (model(features) - features).square().mean() * factor
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss.item(), total)
    return model


def ddp(seconds: float = 1800) -> nn.Module:
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    return nn.parallel.DistributedDataParallel(net())


# ---------------------------------------------------------------- one process: data


def forward_shapes() -> None:
    train()(torch.randn(8, 17))


def collate_key() -> None:
    train()
    [sample["labels"] for sample in [{"input_ids": [1, 2]}]]


def token_out_of_range() -> None:
    train()
    nn.Embedding(32, 8)(torch.tensor([[3, 40]]))


def target_out_of_bounds() -> None:
    train()
    nn.functional.cross_entropy(torch.randn(4, 3), torch.tensor([0, 1, 2, 12]))


def bad_json_line() -> None:
    train()
    Path("part-0003.jsonl").write_text('{"text": "a"}\n{"text": "b\n')
    for line in Path("part-0003.jsonl").read_text().splitlines():
        json.loads(line)


def latin_text() -> None:
    train()
    Path("corpus.txt").write_bytes("caf\u00e9".encode("latin-1"))
    Path("corpus.txt").read_text(encoding="utf-8")


class Samples(Dataset[torch.Tensor]):
    def __init__(self, what: str) -> None:
        self.what = what

    def __len__(self) -> int:
        return 8 * STEPS * 2

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 8 * STEPS + 3:
            if self.what == "raise":
                raise ValueError(f"sample {index}: image has 1 channel, expected 3")
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.what == "length":
                return torch.randn(15)
            if self.what == "segfault":
                import ctypes

                ctypes.string_at(0)
        return torch.randn(16)


def load(what: str, workers: int = 2) -> None:
    model = net()
    for step, features in enumerate(DataLoader(Samples(what), 8, num_workers=workers), 1):
        say(step, model(features).square().mean().item(), TOTAL)


def worker_raises() -> None:
    load("raise")


def worker_killed() -> None:
    load("kill")


def worker_segfaults() -> None:
    load("segfault")


def ragged_batch() -> None:
    load("length", 0)


def ragged_batch_in_worker() -> None:
    load("length")


def lambda_in_spawned_loader() -> None:
    train()
    data = Samples("none")
    data.transform = lambda item: item  # type: ignore[attr-defined]
    next(iter(DataLoader(data, 8, num_workers=1, multiprocessing_context="spawn")))


# ---------------------------------------------------------------- one process: code and configuration


def average_of_nothing() -> None:
    train()
    scores: list[float] = []
    print("mean reward", sum(scores) / len(scores))


def own_assertion() -> None:
    train()
    chosen, rejected = torch.zeros(4), torch.zeros(3)
    assert len(chosen) == len(rejected), (
        f"preference pairs differ: {len(chosen)} chosen, {len(rejected)} rejected"
    )


def missing_package() -> None:
    print("Using attention implementation: flash_attention_2")
    import flash_attn  # noqa: F401


def renamed_function() -> None:
    from transformers import AdamWithWarmRestarts  # noqa: F401


def broken_config() -> None:
    import yaml

    Path("train.yaml").write_text("model:\n  layers: 12\n   hidden: 768\n")
    yaml.safe_load(Path("train.yaml").read_text())


def config_key() -> None:
    print("loading configs/sft.json")
    config = {"optim": {"lr": 3e-4}}
    print(config["optim"]["weight_decay"])


def syntax_error() -> None:
    Path("my_model.py").write_text("def forward(self, x)\n    return x\n")
    os.execv(sys.executable, [sys.executable, "my_model.py"])


def required_argument() -> None:
    parser = argparse.ArgumentParser(prog="train.py")
    parser.add_argument("--model", required=True)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.parse_args(["--lr", "1e-4"])


def none_attribute() -> None:
    train()
    scheduler = None
    scheduler.step()  # type: ignore[attr-defined]


def wrong_keyword() -> None:
    train()
    torch.optim.AdamW(net().parameters(), lr=1e-3, warmup_steps=100)  # type: ignore[call-arg]


def recursion() -> None:
    train()

    def depth(tree: Any) -> int:
        return 1 + depth(tree)

    depth({})


def empty_optimizer() -> None:
    torch.optim.AdamW([], lr=1e-3)


def script_fails() -> None:
    train()
    subprocess.run(
        [sys.executable, "-c", "import sys; sys.exit('tokenizer vocabulary is empty')"], check=True
    )


def label_server_down() -> None:
    train()
    import requests

    requests.post("http://127.0.0.1:9/score", json={"text": "a"}, timeout=2)


# ---------------------------------------------------------------- one process: tensors


def backward_twice() -> None:
    loss = train()(torch.randn(8, 16)).square().mean()
    loss.backward()
    loss.backward()


def inplace_change() -> None:
    train()
    features = torch.randn(8, 16, requires_grad=True)
    hidden = features.exp()
    hidden += 1
    hidden.sum().backward()


def half_and_float() -> None:
    train().half()(torch.randn(8, 16))


def cuda_on_a_cpu_build() -> None:
    net().to("cuda:0")


def loss_is_nan_raised() -> None:
    train()
    loss = float("nan")
    raise FloatingPointError(f"loss is {loss} at step {STEPS + 1}, stopping")


def loss_is_nan_exit() -> None:
    """Exit if the loss is NaN, as DETR, MAE, and similar programs do."""
    model = train()
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))  # type: ignore[index]
    loss = model(torch.randn(8, 16)).square().mean()
    print(f"Loss is {loss.item()}, stopping training")
    sys.exit(1)


def loss_is_nan_goes_on() -> None:
    model = train()
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))  # type: ignore[index]
    train(60, model)


def numpy_memory() -> None:
    train()
    import numpy

    numpy.ones((1 << 22, 1 << 22))


def cpu_allocator() -> None:
    train()
    torch.empty(1 << 46)


def raised(text: str) -> None:
    raise torch.cuda.OutOfMemoryError(text)


def cuda_memory() -> None:
    train()
    free = CHANCE.choice(["52.50 MiB", "1.31 GiB", "913.06 MiB"])
    raised(
        f"CUDA out of memory. Tried to allocate {CHANCE.choice(['1.16 GiB', '448.00 MiB', '9.27 GiB'])}. GPU 0 has a total"
        f" capacity of 79.15 GiB of which {free} is free. Including non-PyTorch memory, this process has 77.80 GiB memory"
        " in use. Of the allocated memory 75.22 GiB is allocated by PyTorch, and 1.81 GiB is reserved by PyTorch but"
        " unallocated."
    )


# ---------------------------------------------------------------- one process: files


def disk_full() -> None:
    model = train()
    with open("/dev/full", "wb") as file:  # noqa: PTH123
        torch.save(model.state_dict(), file)


def no_checkpoint() -> None:
    torch.load("runs/exp7/step-900.pt")


def other_width() -> None:
    state = net().state_dict()
    nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).load_state_dict(state)


def missing_keys() -> None:
    state = {f"module.{name}": item for name, item in net().state_dict().items()}
    net().load_state_dict(state)


def pickle_cut_off() -> None:
    import pickle

    train()
    Path("cache.pkl").write_bytes(pickle.dumps(list(range(1000)))[:100])
    pickle.loads(Path("cache.pkl").read_bytes())


def too_many_files() -> None:
    import resource

    train()
    resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
    kept = [open(sys.executable, "rb") for _ in range(100)]  # noqa: PTH123, SIM115
    print(len(kept))


def output_is_a_file() -> None:
    train()
    Path("checkpoints").write_text("")
    Path("checkpoints/step-10").mkdir(parents=True)


def hub_is_away() -> None:
    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
    os.environ.pop("HF_HUB_OFFLINE", None)
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained("some-team/some-model-7b")


def local_model_path() -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained("/models/llama-sft/checkpoint-900")


# ---------------------------------------------------------------- one process: signals


def killed() -> None:
    train()
    os.kill(os.getpid(), signal.SIGKILL)


def segfault() -> None:
    import ctypes

    train()
    ctypes.string_at(0)


def segfault_with_faulthandler() -> None:
    import ctypes
    import faulthandler

    faulthandler.enable()
    train()
    ctypes.string_at(0)


def aborted() -> None:
    train()
    sys.stderr.write(
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
    )
    os.abort()


def terminated() -> None:
    train()
    os.kill(os.getpid(), signal.SIGTERM)


# ---------------------------------------------------------------- several ranks


def rank_raises() -> None:
    model = ddp()
    train(model=model)
    if RANK == WORLD - 1:
        raise LookupError("no teacher for language 'xx'")
    train(400, model)


def rank_killed() -> None:
    model = ddp()
    train(model=model)
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    train(400, model)


def rank_segfaults() -> None:
    import ctypes

    model = ddp()
    train(model=model)
    if RANK == 1:
        ctypes.string_at(0)
    train(400, model)


def rank_out_of_memory() -> None:
    model = ddp()
    train(model=model)
    if RANK == 1:
        raised(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB of which 1.31 GiB is"
            " free. Including non-PyTorch memory, this process has 77.83 GiB memory in use."
        )
    train(400, model)


def rank_is_late() -> None:
    model = ddp(6)
    train(model=model)
    if RANK == 1:
        time.sleep(14)
    train(5, model)


def rank_leaves() -> None:
    """End rank 1 with exit code 0, because it has fewer batches than the other ranks."""
    model = ddp(20)
    train(model=model)
    if RANK == 1:
        sys.exit(0)
    train(5, model)


def rank_loader() -> None:
    model = ddp()
    if RANK == 1:
        load("raise")
    train(400, model)


def rank_disk_full() -> None:
    model = ddp()
    train(model=model)
    if RANK == 0:
        with open("/dev/full", "wb") as file:  # noqa: PTH123
            torch.save(model.state_dict(), file)
    dist.barrier()


def unused_parameter() -> None:
    dist.init_process_group("gloo")

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return self.used(features)

    train(5, nn.parallel.DistributedDataParallel(Two()))


def models_differ() -> None:
    dist.init_process_group("gloo")
    nn.parallel.DistributedDataParallel(nn.Linear(16, 16 + RANK))


def no_launcher() -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    dist.init_process_group("gloo")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
