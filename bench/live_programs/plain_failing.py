"""Single-process training loops that fail or stop responding after some healthy steps."""

from __future__ import annotations

import http.server
import logging
import multiprocessing
import os
import signal
import socketserver
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import torch
from common import HOUR, event, run, say
from loop import WIDTH, Loop
from torch.utils.data import DataLoader, Dataset

STEPS = 70


def healthy_start(**options: Any) -> Loop:
    """Run enough steps for the agent to learn the pace, and return the loop."""
    loop = Loop(**options)
    loop.train(STEPS)
    return loop


def stuck() -> None:
    event("hang")
    time.sleep(HOUR)


def hang_in_own_code() -> None:
    healthy_start()
    stuck()


def collapse() -> None:
    """Loop forever, because the end condition never becomes true."""
    event("loop")
    words, merged = list(range(50)), 0
    while len(words) > 1:
        merged += sum(words) % 7
        words.append(words.pop(0))


def endless_loop() -> None:
    healthy_start()
    collapse()


class FallsSilent(http.server.BaseHTTPRequestHandler):
    """A server that responds to three requests and then stops responding."""

    answers = 0

    def do_GET(self) -> None:
        FallsSilent.answers += 1
        if FallsSilent.answers > 3:
            event("request")
            time.sleep(HOUR)
        time.sleep(0.5)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def fetch_weights(address: str) -> bytes:
    with urllib.request.urlopen(address) as answer:
        return bytes(answer.read())


def request_without_timeout() -> None:
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), FallsSilent)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    loop = Loop()
    while True:
        loop.train(STEPS // 3)
        fetch_weights(f"http://127.0.0.1:{server.server_address[1]}/teacher")


def take_lock(lock: Any) -> None:
    event("lock")
    with lock:
        pass


def lock_of_a_dead_owner() -> None:
    """Wait for a lock that is never released, because the thread that acquired it has ended."""
    lock = threading.Lock()
    owner = threading.Thread(target=lock.acquire)
    owner.start()
    owner.join()
    healthy_start()
    take_lock(lock)


class Locked(Dataset[torch.Tensor]):
    """A dataset whose worker waits for a lock, starting at a given sample."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __len__(self) -> int:
        return 8 * 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 8 * STEPS:
            event("worker")
            self._lock.acquire()
        return torch.randn(WIDTH)


def loader_worker_waits_for_a_lock() -> None:
    lock = multiprocessing.get_context("fork").Lock()
    lock.acquire()
    loop = Loop()
    loader = DataLoader(Locked(lock), 8, num_workers=1, prefetch_factor=2, multiprocessing_context="fork")
    for features in loader:
        loop.step(features)


def compute_metrics(number: int) -> None:
    time.sleep(1.5)
    if number == 5:
        event("metric")
        time.sleep(HOUR)


def metric_hangs_at_the_5th_evaluation() -> None:
    loop = Loop(0.2)
    for number in range(1, 6):
        loop.train(25)
        loop.evaluate(3)
        compute_metrics(number)


def save_checkpoint(loop: Loop, path: Path) -> None:
    state = {"model": loop.net.state_dict(), "moments": torch.zeros(1 << 22)}
    with path.open("r+b" if path.exists() else "wb", buffering=0) as storage:
        torch.save(state, storage)


def save_into_a_blocked_pipe() -> None:
    """Save into a pipe that is never read. From the fourth checkpoint on, saving blocks."""
    loop = Loop()
    os.mkfifo("checkpoint-3.pt")
    for number in range(4):
        loop.train(25)
        if number == 3:
            event("save")
        save_checkpoint(loop, Path(f"checkpoint-{number}.pt"))


def chatty_logger_beside_a_hang() -> None:
    """Run a thread that prints while the main thread is blocked."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    def chat() -> None:
        for number in range(100_000):
            logging.info("heartbeat %d: gpu 0 utilisation 97 %%, temperature 61 C", number)
            time.sleep(0.5)

    threading.Thread(target=chat, daemon=True).start()
    healthy_start()
    stuck()


def rebuild(seconds: float) -> None:
    """Print the ZeRO-3 lines about a trace cache that is invalidated repeatedly."""
    event("trace cache")
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        number += 1
        print(
            f"Invalidate trace cache @ step {number % 9}: expected module {number % 19}, but got module 3",
            flush=True,
        )
        time.sleep(0.5)


def trace_cache_lines_without_steps() -> None:
    loop = Loop()
    loop.train(60)
    rebuild(60)
    loop.train(60)
    loop.finish()


def forward() -> None:
    event("oom")
    raise torch.cuda.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which"
        " 1.31 GiB is free. Process 4711 has 77.83 GiB memory in use."
    )


def out_of_memory() -> None:
    healthy_start()
    forward()


def collate(batch: dict[str, int]) -> int:
    event("exception")
    return batch["labels"]


def exception() -> None:
    healthy_start()
    collate({"input_ids": 1})


def nan_in_the_log() -> None:
    loop = healthy_start()
    event("nan")
    for _ in range(300):
        loop.step(loss_factor=float("nan"))


def nan_that_only_the_probe_sees() -> None:
    """Train with a NaN loss that only the probe can detect, because the loss is not printed."""
    loop = healthy_start(every=10**9)
    event("nan")
    for _ in range(300):
        loop.step(loss_factor=float("nan"))


def killed() -> None:
    healthy_start()
    event("kill")
    os.kill(os.getpid(), signal.SIGKILL)


def truncated_checkpoint() -> None:
    """Save a checkpoint, truncate it to half its size, as a full file system does, and continue to train."""
    loop = healthy_start()
    folder = Path("checkpoint-70")
    folder.mkdir()
    torch.save({"moments": torch.zeros(1 << 20)}, folder / "pytorch_model.bin")
    os.truncate(folder / "pytorch_model.bin", 2 << 20)
    event("truncated")
    say("Saved checkpoint-70")
    loop.train(600)


def slow_down() -> None:
    """Train with steps that take twice as long from a given step on."""
    loop = Loop(0.2)
    loop.train(250)
    event("slow")
    loop.pace = 0.4
    loop.train(1000)


def hang_in_a_generation() -> None:
    """Generate samples between steps. The fourth generation does not return."""
    loop = Loop()
    for number in range(4):
        loop.train(25)
        sample_text(number)


def sample_text(number: int) -> None:
    time.sleep(2)
    if number == 3:
        event("generation")
        time.sleep(HOUR)


def log_stops() -> None:
    healthy_start()
    stuck()


if __name__ == "__main__":
    run(globals())
