"""Run a small training program that stops responding in a chosen way after some healthy steps.

    python hangs.py SCENARIO

``STALLWATCH_BENCH_SEED`` determines the style of the log and the step of the hang. Only the duration of a
step is simulated. The locks, pipes, sockets, child processes, and collectives are real. Each program writes
the time of its hang to the file that ``STALLWATCH_BENCH_EVENT`` names.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import multiprocessing
import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
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
STEPS = 45 + SEED % 7 * 5  #: number of healthy steps before the hang
TOTAL = CHANCE.choice([500, 1200, 4000])
STYLE = CHANCE.randrange(6)
torch.set_num_threads(1)


def event(what: str) -> None:
    """Record the time of an event in a file that no tool under test reads."""
    with Path(os.environ.get("STALLWATCH_BENCH_EVENT", "/dev/null")).open("a") as file:
        file.write(f"BENCH EVENT {time.time():.3f} {os.getpid()} {what}\n")


def line(step: int, loss: float) -> None:
    """Print the step in the style of one of six trainers."""
    if RANK:
        return
    if STYLE == 0:
        print(f"step {step}/{TOTAL} | loss {loss:.4f} | lr 3.00e-04", flush=True)
    elif STYLE == 1:
        print(
            {"loss": round(loss, 4), "grad_norm": 0.71, "learning_rate": 3e-4, "epoch": step / TOTAL},
            flush=True,
        )
    elif STYLE == 2:
        logging.info("[train] global_step=%d train/loss=%.5f", step, loss)
    elif STYLE == 3:
        print(
            f"Epoch: [0]  [{step:>4}/{TOTAL}]  eta: 0:12:31  loss: {loss:.4f}  time: 0.25  data: 0.001",
            flush=True,
        )
    elif STYLE == 4:
        sys.stderr.write(
            f"\rTraining: {100 * step // TOTAL:3d}%|█         | {step}/{TOTAL} [00:{step // 4:02d}<05:00,  4.00it/s]"
        )
        sys.stderr.flush()
    else:
        print(f"iter {step}: loss {loss:.4f}, time 251.20ms, mfu 12.10%", flush=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        time.sleep(0.2 * CHANCE.uniform(0.9, 1.1))
        return self.last(torch.relu(self.first(features)))


class Loop:
    """A model and its training steps. If there are several ranks, the training is data-parallel."""

    def __init__(self) -> None:
        logging.basicConfig(
            level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(levelname)s %(message)s"
        )
        if WORLD > 1:
            dist.init_process_group("gloo", timeout=timedelta(minutes=30))
        net = Net()
        self.model: Any = nn.parallel.DistributedDataParallel(net) if WORLD > 1 else net
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.step_number = 0

    def step(self, features: torch.Tensor | None = None) -> None:
        features = torch.randn(8, 16) if features is None else features
        loss = (self.model(features) - features.sum(1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step_number += 1
        line(self.step_number, loss.item())

    def train(self, steps: int = STEPS) -> Loop:
        self.model.train()
        for _ in range(steps):
            self.step()
        return self

    def evaluate(self, batches: int = 6) -> None:
        self.model.eval()
        with torch.no_grad():
            for _ in range(batches):
                (self.model.module if WORLD > 1 else self.model)(torch.randn(8, 16))
        self.model.train()


# ---------------------------------------------------------------- one process


def read_from_label_server(address: tuple[str, int]) -> bytes:
    with socket.create_connection(address) as connection:
        connection.sendall(b"GET labels\n")
        event("socket")
        return connection.recv(1024)


def socket_without_timeout() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    Loop().train()
    read_from_label_server(server.getsockname())


def convert_audio() -> None:
    event("child")
    subprocess.run([sys.executable, "-c", "import time; time.sleep(3600)"], check=True)


def child_process_never_ends() -> None:
    Loop().train()
    convert_audio()


def next_from_prefetcher(ready: queue.Queue[torch.Tensor]) -> torch.Tensor:
    if ready.empty():
        event("queue")
    return ready.get()


def prefetch_thread_died() -> None:
    ready: queue.Queue[torch.Tensor] = queue.Queue()

    def feed() -> None:
        for _ in range(STEPS):
            ready.put(torch.randn(8, 16))

    threading.Thread(target=feed, daemon=True).start()
    loop = Loop()
    time.sleep(1)
    while True:
        loop.step(next_from_prefetcher(ready))


def swap_buffers(mine: threading.Lock, other: threading.Lock, first: bool) -> None:
    with mine:
        time.sleep(0.5)
        if first:
            event("locks")
        with other:
            pass


def two_locks_in_opposite_order() -> None:
    first, other = threading.Lock(), threading.Lock()
    Loop().train()
    threading.Thread(target=swap_buffers, args=(other, first, False), daemon=True).start()
    swap_buffers(first, other, True)


def _score(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def score_in_pool() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        event("pool")
        pool.map(_score, range(8), chunksize=1)


def pool_lost_a_worker() -> None:
    """Kill a worker in a pool. ``map`` then waits forever for the worker's result."""
    Loop().train()
    score_in_pool()


class Files(Dataset[torch.Tensor]):
    def __init__(self, read: Callable[[int], None]) -> None:
        self._read = read

    def __len__(self) -> int:
        return 8 * 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 8 * STEPS:
            event("worker")
            self._read(index)
        return torch.randn(16)


def decode_video(_: int) -> None:
    time.sleep(3600)


def open_shard(_: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(Path(folder) / "shard")
        (Path(folder) / "shard").read_bytes()


def loader_worker_decodes_for_ever() -> None:
    loop = Loop()
    for features in DataLoader(Files(decode_video), 8, num_workers=1, multiprocessing_context="fork"):
        loop.step(features)


def loader_worker_opens_a_dead_mount() -> None:
    loop = Loop()
    for features in DataLoader(Files(open_shard), 8, num_workers=1, multiprocessing_context="fork"):
        loop.step(features)


def loader_in_main_process_hangs() -> None:
    loop = Loop()
    for features in DataLoader(Files(decode_video), 8):
        loop.step(features)


def write_checkpoint(loop: Loop, path: str) -> None:
    with open(path, "wb", buffering=0) as file:  # noqa: PTH123
        torch.save({"model": loop.model.state_dict(), "moments": torch.zeros(1 << 20)}, file)


def checkpoint_to_a_dead_mount() -> None:
    loop = Loop().train(25)
    write_checkpoint(loop, "step-25.pt")
    loop.train(STEPS)
    os.mkfifo("step-50.pt")
    descriptor = os.open("step-50.pt", os.O_RDWR)  # no process reads the pipe, so the writer blocks
    event("save")
    write_checkpoint(loop, f"/proc/self/fd/{descriptor}")


def compute_bleu(number: int) -> None:
    time.sleep(1)
    if number == 4:
        event("metric")
        threading.Event().wait()


def metric_waits() -> None:
    loop = Loop()
    for number in range(1, 5):
        loop.train(15)
        loop.evaluate()
        compute_bleu(number)


def generate_until_end_of_text() -> None:
    event("generation")
    tokens = [1]
    while tokens[-1] != 2:
        tokens = [*tokens[-64:], (tokens[-1] * 31 + 7) % 1009 or 1]
        tokens[-1] += tokens[-1] == 2


def generation_never_ends() -> None:
    Loop().train()
    generate_until_end_of_text()


def strip_markup(text: str) -> None:
    event("regex")
    re.match(r"(a+)+$", text)


def regex_backtracks() -> None:
    """Block while matching a regular expression that backtracks.

    The match runs in compiled code that holds the interpreter lock.
    """
    Loop().train()
    strip_markup("a" * 60 + "b")


def take_cache_lock(path: Path) -> None:
    with path.open("w") as file:
        event("flock")
        fcntl.flock(file, fcntl.LOCK_EX)


def file_lock_held_elsewhere() -> None:
    path = Path("cache.lock").resolve()
    hold = f"import fcntl,time; f=open({str(path)!r},'w'); fcntl.flock(f, fcntl.LOCK_EX); time.sleep(3600)"
    holder = subprocess.Popen([sys.executable, "-c", hold])
    Loop().train()
    try:
        take_cache_lock(path)
    finally:
        holder.kill()


def flush_metrics(uploader: threading.Thread) -> None:
    event("join")
    uploader.join()


def logger_thread_never_ends() -> None:
    uploader = threading.Thread(target=time.sleep, args=(3600,), daemon=True)
    uploader.start()
    Loop().train()
    flush_metrics(uploader)


async def gather_rollouts() -> None:
    event("asyncio")
    await asyncio.Event().wait()


def coroutine_never_ends() -> None:
    Loop().train()
    asyncio.run(gather_rollouts())


def wait_for_tokenized_shard(path: Path) -> None:
    event("poll")
    while not path.exists():
        time.sleep(1)


def polls_for_a_file() -> None:
    Loop().train()
    wait_for_tokenized_shard(Path("shard-0007.bin"))


def pack_sequences() -> None:
    event("busy")
    left = 10
    while left:
        left = left % 7 + 1


def packing_never_ends() -> None:
    Loop().train()
    pack_sequences()


def lookup_teacher(stream: Any) -> str:
    event("pipe")
    return str(stream.readline())


def helper_does_not_answer() -> None:
    """Block on a pipe to a helper process that has stopped responding."""
    helper = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(3600)"], stdout=subprocess.PIPE, text=True
    )
    Loop().train()
    lookup_teacher(helper.stdout)


def hangs_before_the_last_save() -> None:
    """Finish the last step and block before the final save."""
    global TOTAL
    TOTAL = STEPS
    Loop().train()
    print("Training completed, merging adapter weights", flush=True)
    merge_adapters()


def merge_adapters() -> None:
    event("merge")
    time.sleep(3600)


# ---------------------------------------------------------------- several ranks


def shuffle_shards() -> None:
    event("rank")
    time.sleep(3600)


def one_rank_sleeps() -> None:
    loop = Loop().train()
    if RANK == WORLD - 1:
        shuffle_shards()
    loop.train(1000)


def synchronise_loss() -> None:
    if RANK != 1:
        dist.all_reduce(torch.zeros(4))


def conditional_collective() -> None:
    """Call a collective only on the ranks whose batch has a label."""
    loop = Loop().train()
    if RANK == 0:
        event("collective")
    synchronise_loss()
    dist.monitored_barrier(timeout=timedelta(minutes=30)) if RANK == 1 else None
    loop.train(1000)


def receive_activations() -> None:
    event("recv")
    dist.recv(torch.zeros(4), src=1)


def recv_without_send() -> None:
    """Make rank 0 of a pipeline wait for activations that rank 1 never sends."""
    loop = Loop().train()
    if RANK == 0:
        receive_activations()
    loop.train(1000)


def one_rank_is_stopped() -> None:
    loop = Loop().train()
    if RANK == 1:
        event("SIGSTOP")
        os.kill(os.getpid(), signal.SIGSTOP)
    loop.train(1000)


def evaluate_on_rank_zero() -> None:
    event("evaluation")
    time.sleep(3600)


def rank_0_evaluates_for_ever() -> None:
    loop = Loop().train()
    if RANK == 0:
        evaluate_on_rank_zero()
    dist.barrier()
    loop.train(1000)


def rank_0_saves_to_a_dead_mount() -> None:
    loop = Loop().train()
    if RANK == 0:
        os.mkfifo("checkpoint.pt")
        event("save")
        write_checkpoint(loop, "checkpoint.pt")
    dist.barrier()
    loop.train(1000)


def uneven_data() -> None:
    """Make rank 1 run out of batches and wait in the last barrier while other ranks wait in an all-reduce."""
    loop = Loop().train()
    if RANK == 1:
        event("uneven")
        print("rank 1: epoch finished", flush=True)
        finish_epoch()
    loop.train(1000)


def finish_epoch() -> None:
    dist.barrier()


def join_expert_group() -> None:
    event("group")
    dist.new_group([0, 1])
    dist.barrier()


def group_made_on_one_rank() -> None:
    """Call ``new_group`` on only one rank, although every rank must call it."""
    loop = Loop().train()
    if RANK == 0:
        join_expert_group()
    loop.train(1000)


def gather_metrics() -> None:
    found: list[Any] = [None] * WORLD
    dist.all_gather_object(found, {"rank": RANK})


def one_rank_leaves_the_gather_out() -> None:
    loop = Loop().train()
    if RANK == 0:
        event("gather")
        gather_metrics()
    loop.train(1000)


def loader_of_one_rank_hangs() -> None:
    loop = Loop()
    read = decode_video if RANK == 1 else (lambda _: None)
    for features in DataLoader(Files(read), 8, num_workers=1, multiprocessing_context="fork"):
        loop.step(features)


def wait_for_rank_zero_cache() -> None:
    event("poll")
    while not Path("/nonexistent/cache.arrow").exists():
        time.sleep(1)


def rank_1_polls_for_a_cache() -> None:
    loop = Loop().train()
    if RANK == 1:
        wait_for_rank_zero_cache()
    loop.train(1000)


#: Correct answer by scenario: number of ranks, function or call that blocks, and rank at fault (or None).
SCENARIOS: dict[str, tuple[int, str, int | None]] = {
    "socket_without_timeout": (1, "read_from_label_server", None),
    "child_process_never_ends": (1, "convert_audio", None),
    "prefetch_thread_died": (1, "next_from_prefetcher", None),
    "two_locks_in_opposite_order": (1, "swap_buffers", None),
    "pool_lost_a_worker": (1, "score_in_pool", None),
    "loader_worker_decodes_for_ever": (1, "decode_video|DataLoader|data.?loader", None),
    "loader_worker_opens_a_dead_mount": (1, "open_shard|DataLoader|data.?loader", None),
    "loader_in_main_process_hangs": (1, "decode_video", None),
    "checkpoint_to_a_dead_mount": (1, "write_checkpoint", None),
    "metric_waits": (1, "compute_bleu", None),
    "generation_never_ends": (1, "generate_until_end_of_text", None),
    "regex_backtracks": (1, "strip_markup", None),
    "file_lock_held_elsewhere": (1, "take_cache_lock", None),
    "logger_thread_never_ends": (1, "flush_metrics", None),
    "coroutine_never_ends": (1, "gather_rollouts|coroutine_never_ends", None),
    "polls_for_a_file": (1, "wait_for_tokenized_shard", None),
    "packing_never_ends": (1, "pack_sequences", None),
    "helper_does_not_answer": (1, "lookup_teacher", None),
    "hangs_before_the_last_save": (1, "merge_adapters", None),
    "one_rank_sleeps": (3, "shuffle_shards", 2),
    "conditional_collective": (2, "synchronise_loss|conditional_collective|monitored_barrier", None),
    "recv_without_send": (2, "receive_activations", 0),
    "one_rank_is_stopped": (2, "SIGSTOP|SIGCONT|stopped|suspended", 1),
    "rank_0_evaluates_for_ever": (2, "evaluate_on_rank_zero", 0),
    "rank_0_saves_to_a_dead_mount": (2, "write_checkpoint", 0),
    "uneven_data": (2, "finish_epoch", 1),
    "group_made_on_one_rank": (2, "join_expert_group", 0),
    "one_rank_leaves_the_gather_out": (2, "gather_metrics", 0),
    "loader_of_one_rank_hangs": (2, "decode_video|DataLoader|data.?loader", 1),
    "rank_1_polls_for_a_cache": (2, "wait_for_rank_zero_cache", 1),
}


if __name__ == "__main__":
    globals()[sys.argv[1]]()
