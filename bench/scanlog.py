"""Generate a multi-rank log with a known number of signatures."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

CHATTER = (
    "{{'loss': {loss:.4f}, 'grad_norm': {norm:.6f}, 'learning_rate': {rate:.8g}, 'epoch': {epoch:.2f}}}",
    "[{clock},{ms:03d}] [INFO] [logging.py:128:log_dist] [Rank {rank}] step={step}, skipped=0, "
    "lr=[{rate:.8g}]",
    "[{clock},{ms:03d}] [INFO] [timer.py:264:stop] epoch=0/micro_step={step}/global_step={step}, "
    "RunningAvgSamplesPerSec={norm:.10f}, MemAllocated=12.17GB, MaxMemAllocated=61.03GB",
    "node-{rank:03d}:{step}:{ms} [{rank}] NCCL INFO Channel {ms:02d}/0 : 1[1] -> 2[2] via P2P/IPC/read",
    "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py:{ms}: UserWarning: a deprecated call",
    "  return Variable._execution_engine.run_backward(",
    "{clock},{ms:03d} | INFO | worker.{rank}:run:{ms} - dataset shard {step} loaded in {norm:.2f} s",
)
BAR = " {percent:3d}%|{fill:<10}| {step}/900000 [1:02:03<4:05:06,  {pace:5.2f}s/it]"


def write_rank(
    path: Path, rank: int, size: int, faults: Sequence[str], density: float, bars: float
) -> tuple[int, int]:
    """Write the log of a rank. Return its number of bytes and its number of signature lines.

    ``density`` is the share of lines that are signatures. ``bars`` is the share of lines that follow redraws
    of a progress bar.
    """
    rng = random.Random(rank)
    written = found = 0
    with path.open("wb") as file:
        for text, known in _lines(rng, rank, faults, density, bars):
            data = text.encode()
            file.write(data)
            written += len(data)
            found += known
            if written >= size:
                return written, found
    raise AssertionError("the lines never end")


def _lines(
    rng: random.Random, rank: int, faults: Sequence[str], density: float, bars: float
) -> Iterator[tuple[str, bool]]:
    step = 0
    while True:
        step += 1
        seconds = step // 5
        day, rest = 1 + seconds // 86400 % 28, seconds % 86400
        clock = f"2026-05-{day:02d} {rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
        facts = {
            "clock": clock,
            "rank": rank,
            "step": step,
            "ms": rng.randrange(1000),
            "loss": 2 / (1 + step / 1000) + 0.01 * rng.random(),
            "norm": 1 + rng.random(),
            "rate": 1e-5 * rng.random(),
            "epoch": step / 5000,
        }
        for form in CHATTER:
            if rng.random() < density:
                yield rng.choice(faults) + "\n", True
            if rng.random() < bars:
                drawn = [
                    BAR.format(percent=step // 9000, fill="#" * (step % 10), step=step, pace=rng.random())
                    for _ in range(rng.randrange(3, 9))
                ]
                yield "\r".join(drawn) + "\n", False
            yield form.format(**facts) + "\n", False
