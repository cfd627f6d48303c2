"""Programs that print lines in the formats of other trainers, without importing these trainers.

For such programs, the log is the only source that Stallwatch can read.
"""

from __future__ import annotations

import sys
import time

from common import CHANCE, about, event, run, say


def megatron_line(number: int) -> None:
    say(
        f" iteration {number:8d}/    5000 | consumed samples: {number * 64:12d} |"
        f" elapsed time per iteration (ms): {250 + CHANCE.random() * 20:.1f} |"
        " learning rate: 3.000000E-04 | global batch size:    64 |"
        f" lm loss: {10 / (1 + number / 50):.6E} | loss scale: 1.0 | grad norm: {1 + CHANCE.random():.3f} |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def megatron() -> None:
    """Print a line for each iteration and announce the validation."""
    for number in range(1, 201):
        megatron_line(number)
        time.sleep(0.25)
        if number == 120:
            say("-" * 60)
            time.sleep(about(20))
            say(f" validation loss at iteration {number} | lm loss value: 4.1E+00 | lm loss PPL: 6.0E+01 |")
    say("[after training is done] datetime: 2026-11-23 20:00:00")


def nanogpt() -> None:
    """Print iterations, and an evaluation with a checkpoint every 100 iterations."""
    for number in range(201):
        if number % 100 == 0:
            time.sleep(about(10))
            say(f"step {number}: train loss {4.3 - number / 100:.4f}, val loss {4.4 - number / 100:.4f}")
            say("saving checkpoint to out")
            time.sleep(2)
        say(f"iter {number}: loss {4.3 - number / 100:.4f}, time {250 + CHANCE.random():.2f}ms, mfu 31.02%")
        time.sleep(0.25)


def jax_line(number: int) -> None:
    say(
        f"I1123 20:00:00.000000 140 train.py:88] [{number}]"
        f" train_loss={5 / (1 + number / 50):.4f}, steps_per_sec=4.0"
    )


def jax() -> None:
    """Print the log of a run whose first step compiles for half a minute."""
    say("I1123 20:00:00.000000 140 train.py:60] Compiling train_step ...")
    time.sleep(about(30))
    for number in range(1, 181):
        jax_line(number)
        time.sleep(0.25)


def keras_epoch(epoch: int, batches: int) -> None:
    say(f"Epoch {epoch}/5")
    for number in range(1, batches + 1):
        done = "=" * (30 * number // 60) + ">" + "." * (29 - 30 * number // 60)
        sys.stdout.write(f"\r{number}/60 [{done}] - ETA: 12s - loss: {2.3 / epoch:.4f} - accuracy: 0.51")
        sys.stdout.flush()
        time.sleep(0.25)
    sys.stdout.write("\n")


def keras_bar() -> None:
    for epoch in range(1, 6):
        keras_epoch(epoch, 60)
        time.sleep(3)


def tqdm_bar() -> None:
    from tqdm import tqdm

    with tqdm(range(220), desc="train") as bar:
        for number in bar:
            time.sleep(0.25 * CHANCE.uniform(0.9, 1.1))
            bar.set_postfix(loss=5 / (1 + number / 50))
            if number == 100:
                for _ in tqdm(range(40), desc="valid", leave=False):
                    time.sleep(about(1))


def rich_bar() -> None:
    """Draw a progress bar even though the output is not a terminal."""
    from rich.console import Console
    from rich.progress import track

    for number in track(range(220), "train", console=Console(force_terminal=True, width=100)):
        time.sleep(0.25 * CHANCE.uniform(0.9, 1.1))
        if number % 50 == 49:
            say(f"step {number + 1}/220 loss {5 / (1 + number / 50):.4f}")


def validation_lines() -> None:
    """Print a line about the progress of a validation every ten seconds."""
    for number in range(1, 161):
        jax_line(number)
        time.sleep(0.25)
        if number == 120:
            for batch in range(1, 11):
                time.sleep(about(9))
                say(f"I1123 20:00:00.000000 140 eval.py:31] validation batch {batch}/10 loss=4.2100")


def warm_up() -> None:
    """Print the log of a warm-up whose loss rises for a while with the learning rate."""
    for number in range(1, 281):
        rate = 3e-4 * min(number / 200, 1)
        say(
            f"{{'loss': {5 - number / 400 + CHANCE.gauss(0, 0.3):.4f},"
            f" 'grad_norm': {CHANCE.uniform(0.5, 3):.3f},"
            f" 'learning_rate': {rate:.3e}, 'epoch': {number / 1000:.3f}}}"
        )
        time.sleep(0.25)


def hang() -> None:
    event("hang")
    time.sleep(3600)


def keras_bar_stops() -> None:
    for epoch in range(1, 4):
        keras_epoch(epoch, 60)
    keras_epoch(4, 20)
    hang()


def megatron_stops() -> None:
    for number in range(1, 161):
        megatron_line(number)
        time.sleep(0.25)
    hang()


def tqdm_bar_stops() -> None:
    from tqdm import tqdm

    for number in tqdm(range(1000), desc="train"):
        time.sleep(0.25)
        if number == 160:
            hang()


def out_of_memory() -> None:
    """Print XLA's out-of-memory error and end with an exit code that a pipe hides."""
    for number in range(1, 100):
        jax_line(number)
        time.sleep(0.25)
    event("oom")
    raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738368 bytes.")


def jax_stops() -> None:
    for number in range(1, 161):
        jax_line(number)
        time.sleep(0.25)
    hang()


if __name__ == "__main__":
    run(globals())
