"""A ZeRO-3 run that trains well, then rebuilds its trace cache more and more often, then hangs.

    torchrun --nproc-per-node 2 --tee 3 tests/repro/zero3_stall.py

A small transformer learns two kinds of number sequences. Each kind has its own layers, so the modules that
run depend on the data, which is the same on both ranks.

1. At first, all data is of the first kind: DeepSpeed records the order of the modules once and prefetches.
2. Then the second kind is mixed in, more and more of it. Each change of the order makes DeepSpeed invalidate
   its trace ("Invalidate trace cache @ step …", printed by DeepSpeed itself), gather parameters without
   prefetch and record the order again, so the steps really take longer.
3. The data of rank 1 ends early and its feeder thread does not report it, so rank 1 waits in ``queue.get()``
   without end. Rank 0 continues into the next collective of ZeRO-3 and waits there until the timeout of gloo
   ends the run.

All printed values are measured. One part is simulated: the feeder sleeps ``--pace`` seconds a step, in place
of the reading and tokenizing of a real data loader. It sleeps in parallel to the training, so a step takes
longer only if the training itself does.
"""

from __future__ import annotations

import argparse
import queue
import random
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import tiny
import torch
from torch import nn

VOCABULARY, LENGTH, WIDTH, HEADS = 32, 32, 64, 4
MICRO_BATCHES = 4  # forward and backward passes per optimizer step
LOG_EVERY = 10


class Batch(NamedTuple):
    tokens: torch.Tensor
    kind: int  #: 0: counting in steps, 1: repeating a short pattern


class Layer(nn.Module):
    """One transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.feed_forward = tiny.Block(WIDTH)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        normed = self.norm(hidden)
        attended, _ = self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)
        return self.feed_forward(hidden + attended)


class Sequences(nn.Module):
    """A language model over small numbers, with one layer for each kind of sequence between shared layers."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.first, self.last = Layer(), Layer()
        self.by_kind = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, batch: Batch) -> torch.Tensor:
        inputs, targets = batch.tokens[:, :-1], batch.tokens[:, 1:]
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        hidden = self.token(inputs) + self.position(torch.arange(LENGTH))
        for layer in (self.first, self.by_kind[batch.kind], self.last):
            hidden = layer(hidden, mask)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def sequences(kind: int, generator: torch.Generator, size: int = 8) -> torch.Tensor:
    """Return sequences that count in steps of 1 to 4, or that repeat a pattern of 2 to 5 numbers."""
    places = torch.arange(LENGTH + 1)
    if kind == 0:
        begin = torch.randint(VOCABULARY, (size, 1), generator=generator)
        by = torch.randint(1, 5, (size, 1), generator=generator)
        return (begin + by * places) % VOCABULARY
    patterns = torch.randint(VOCABULARY, (size, 5), generator=generator)
    periods = torch.randint(2, 6, (size, 1), generator=generator)
    return patterns.gather(1, places % periods)


def share_of_second_kind(step: int, hang_at: int) -> float:
    """Return the share of the second kind: zero in the first third, then rising to one half."""
    start = hang_at / 3
    return max(0.0, 0.5 * (step - start) / (hang_at - start))


def shard(rank: int, seed: int, steps: int, hang_at: int) -> Iterator[Batch]:
    """Yield the batches of one rank. The kinds are equal on all ranks, the numbers are not."""
    kinds = random.Random(seed)
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    for step in range(1, steps + 1):
        if rank == 1 and step > hang_at:
            return  # the real fault: this rank gets less data than the other
        for _ in range(MICRO_BATCHES):
            kind = int(kinds.random() < share_of_second_kind(step, hang_at))
            yield Batch(sequences(kind, generator), kind)


class Feeder:
    """Prepares batches in a thread. The fault: it does not report the end of the data."""

    def __init__(self, source: Iterator[Batch], pace: float) -> None:
        self._source, self._pace = source, pace
        self._ready: queue.Queue[Batch] = queue.Queue(maxsize=2)
        threading.Thread(target=self._feed, name="feeder", daemon=True).start()

    def _feed(self) -> None:
        for batch in self._source:
            time.sleep(self._pace / MICRO_BATCHES)
            self._ready.put(batch)

    def next(self) -> Batch:
        return self._ready.get()


def settings(steps: int) -> dict[str, object]:
    return {
        **tiny.config(learning_rate=3e-3, log_trace_cache_warnings=True),
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"total_num_steps": steps, "warmup_num_steps": 20, "warmup_max_lr": 3e-3},
        },
    }


def train(options: argparse.Namespace) -> None:
    rank = tiny.start(timeout=options.timeout, seed=options.seed)
    engine = tiny.prepare(Sequences(), settings(options.steps))
    feeder = Feeder(shard(rank, options.seed, options.steps, options.hang_at), options.pace)
    recent: list[float] = []
    for step in range(1, options.steps + 1):
        losses = []
        for _ in range(MICRO_BATCHES):
            loss = engine(feeder.next())
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        recent.append(sum(losses) / len(losses))
        print(f"rank {rank} step {step}/{options.steps} loss {recent[-1]:.4f}")
        if rank == 0 and step % LOG_EVERY == 0:
            print(
                {
                    "loss": round(sum(recent) / len(recent), 4),
                    "grad_norm": round(float(engine.get_global_grad_norm()), 4),
                    "learning_rate": engine.get_lr()[0],
                    "epoch": round(step / options.steps, 3),
                }
            )
            recent.clear()
    tiny.finish()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--steps", type=int, default=480, help="optimizer steps planned (default: %(default)s)")
    option(
        "--hang-at", type=int, default=240, help="last step that rank 1 has data for (default: %(default)s)"
    )
    option("--pace", type=float, default=0.3, help="seconds the feeder sleeps a step (default: %(default)s)")
    option("--timeout", type=float, default=90, help="seconds until gloo gives up (default: %(default)s)")
    option("--seed", type=int, default=1, help="seed of weights and data (default: %(default)s)")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
