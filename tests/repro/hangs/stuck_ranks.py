"""Ranks that train a toy model over gloo, and hang in the requested way.

``stuck_ranks.py FOLDER``: a file ``FOLDER/<hang>-<rank>`` makes that rank hang in that way while the file
exists; ``FOLDER/stop`` ends the training. One start of the ranks serves many hangs.
"""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

FOLDER = Path(sys.argv[1])
PACE = 0.03
MEGABYTES = 4  # size of a checkpoint: more than a pipe holds


def held(name: str) -> bool:
    """Return True while this rank has to hang in this way."""
    return (FOLDER / f"{name}-{dist.get_rank()}").exists()


def note(what: str, number: int) -> None:
    """Record the step at which this rank does something."""
    (FOLDER / f"{what}-{dist.get_rank()}").write_text(str(number))


# ---------------------------------------------------------------- kinds of hangs


def slow_reward() -> None:
    """Sleep in the caller of the collective on one rank."""
    while held("reward"):
        time.sleep(0.05)


class Items(Dataset[int]):
    """Data set whose items need a lock that a thread of the rank holds: its worker never continues."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        with self._lock:
            return index


def deadlocked_loader() -> None:
    """Let a worker of the DataLoader wait for a lock that is never released."""
    lock = multiprocessing.get_context("fork").Lock()
    lock.acquire()

    def let_go() -> None:
        while held("loader"):
            time.sleep(0.05)
        lock.release()

    threading.Thread(target=let_go, daemon=True).start()
    for _ in DataLoader(Items(lock), num_workers=1, multiprocessing_context="fork"):
        pass


def endless_loop() -> None:
    """Run an endless loop in Python, which keeps the processor busy."""
    tried = 0
    while held("loop"):
        for _ in range(1_000_000):
            tried += 1


def locked_file() -> None:
    """Wait for a file lock that another process holds."""
    with (FOLDER / "cache.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.flock(file, fcntl.LOCK_UN)


def native_call() -> None:
    """Wait in a C function that keeps the interpreter lock."""
    with (FOLDER / "native.pipe").open("r+b", buffering=0) as pipe:
        ctypes.PyDLL(None).read(pipe.fileno(), ctypes.create_string_buffer(1), 1)


def stuck_save() -> None:
    """Save a checkpoint to storage that accepts no more data: a pipe that is never read."""
    state = {"weights": torch.zeros(MEGABYTES << 18)}
    with (FOLDER / "save.pipe").open("r+b", buffering=0) as storage:
        torch.save(state, storage)


def endless_generation(model: Any) -> None:
    """Run a rollout that never ends."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Released(StoppingCriteria):
        def __call__(self, ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
            time.sleep(0.1)
            return torch.full((ids.shape[0],), not held("rollout"))

    prompt = torch.ones((1, 4), dtype=torch.long)
    model.generate(prompt, max_new_tokens=1900, stopping_criteria=StoppingCriteriaList([Released()]))


def tiny_language_model() -> Any:
    """Return a model of two layers, made here without a download."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = GPT2Config(vocab_size=32, n_positions=2048, n_embd=16, n_layer=1, n_head=2)
    sizes.bos_token_id = sizes.eos_token_id = sizes.pad_token_id = None
    return GPT2LMHeadModel(sizes).eval()


# ---------------------------------------------------------------- the training


def hangs() -> Iterator[tuple[str, Callable[[], None]]]:
    yield "reward", slow_reward
    yield "loader", deadlocked_loader
    yield "loop", endless_loop
    yield "flock", locked_file
    yield "native", native_call
    yield "save", stuck_save
    if dist.get_rank() == 1:
        language_model = tiny_language_model()
        yield "rollout", lambda: endless_generation(language_model)


def train() -> None:
    """Run steps whose gradients all ranks share, until the stop file exists."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ways = list(hangs())
    go_on = torch.ones(1)
    number = 0
    while go_on.item() > 0:
        number += 1
        for name, hang in ways:
            if held(name):
                note("hangs", number)
                hang()
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        note("joins", number)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        (FOLDER / f"trains-{dist.get_rank()}").touch()
        go_on = torch.tensor([0.0 if (FOLDER / "stop").exists() else 1.0])
        dist.all_reduce(go_on, dist.ReduceOp.MIN)
        time.sleep(PACE)


if __name__ == "__main__":
    torch.set_num_threads(1)
    (FOLDER / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    train()
    dist.destroy_process_group()
