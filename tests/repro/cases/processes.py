"""Processes that end by a signal, by the launcher, by another rank's absence, or by a port in use."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import socket
import sys
import tempfile
import time

import torch
from loop import join, net, rank, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


def killed() -> None:
    """End with SIGKILL, as the kernel does when the host is out of memory."""
    join()
    train(10, at=6, then=lambda: os.kill(os.getpid(), signal.SIGKILL) if rank() else time.sleep(60))


def segfault() -> None:
    """Read address 0 in native code."""
    train(10, at=6, then=lambda: ctypes.string_at(0))


def bus_error() -> None:
    """Read a mapped file that became shorter: a full /dev/shm has the same effect on a process."""

    def touch() -> None:
        with tempfile.TemporaryFile() as file:
            file.truncate(1 << 20)
            mapped = mmap.mmap(file.fileno(), 1 << 20)
            file.truncate(0)
            mapped[1 << 19] = 1

    train(10, at=6, then=touch)


def interrupted() -> None:
    """End with Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # even if the shell ignored the signal
    train(10, at=6, then=lambda: os.kill(os.getpid(), signal.SIGINT))


def terminated() -> None:
    """Terminate the launcher, as a scheduler or an operator does."""
    join()
    train(10, at=6, then=lambda: (rank() or os.kill(os.getppid(), signal.SIGTERM), time.sleep(60)))


def hung_up() -> None:
    """Close the terminal: the launcher gets SIGHUP."""
    join()
    train(10, at=6, then=lambda: (rank() or os.kill(os.getppid(), signal.SIGHUP), time.sleep(60)))


def absent_rank() -> None:
    """Let rank 1 end early, so that the collective of rank 0 times out."""
    join(seconds=5)
    if rank() == 1:
        time.sleep(12)
        return
    train(6)
    torch.distributed.all_reduce(torch.ones(4))


def evaluation_hang() -> None:
    """Give rank 1 fewer batches to evaluate, so that rank 0 gathers without it."""
    join(seconds=5)
    train(6)
    if rank() == 0:
        print("***** Running Evaluation *****\n  Num examples = 6\n  Batch size = 2")
    for _ in range(3 - rank()):
        torch.distributed.all_reduce(torch.ones(4))
    if rank() == 1:
        time.sleep(12)


def unknown_exception() -> None:
    """Raise a user-defined exception on one rank; the other rank loses its connection."""
    join(seconds=20)
    train(6)
    if rank() == 1:
        raise LookupError("shard 17 of the curriculum has no teacher")
    torch.distributed.all_reduce(torch.ones(4))


def no_launcher() -> None:
    """Start a script for torchrun with plain python."""
    join()


def port_in_use() -> None:
    """Use a master port that another job holds."""
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
        join(seconds=5)


def master_unreachable() -> None:
    """Connect to a master address without a listener."""
    with socket.socket() as other:
        other.bind(("", 0))
        port = other.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "RANK": "1", "WORLD_SIZE": "2"}
    join(seconds=3)


def unused_parameters() -> None:
    """Train with a trainable layer that does not contribute to the loss."""
    join()
    model = net()
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    train(10, model=DistributedDataParallel(model))


def marked_ready_twice() -> None:
    """Run a layer's backward pass twice under DDP, by re-entrant checkpointing."""
    join()

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            hidden = hidden.requires_grad_()
            for _ in range(2):
                hidden = checkpoint(self.layer, hidden, use_reentrant=True)
            return hidden

    train(5, model=DistributedDataParallel(Twice(), find_unused_parameters=True))


def too_many_open_files() -> None:
    """Open files without closing them up to the system's limit."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = []

    def open_more() -> None:
        for _ in range(100):
            kept.append(open(sys.executable, "rb"))  # noqa: PTH123, SIM115 - the leak is the point

    train(10, at=6, then=open_more)
