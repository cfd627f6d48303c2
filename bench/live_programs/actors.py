"""Training in which an actor process plays, and a learner process trains on rollouts from a queue."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from typing import Any

from common import CHANCE, HOUR, event, run


def play(queue: Any, seconds: float, hangs_at: int, dies_at: int) -> None:
    """Put rollouts of varying length into the queue."""
    import torch

    for number in range(100_000):
        if number == hangs_at:
            event("environment")
            step_environment()
        if number == dies_at:
            event("kill")
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(seconds * math.exp(CHANCE.gauss(0, 0.3)))
        queue.put(torch.randn(8, 16).tolist())


def step_environment() -> None:
    """Wait for an hour, as if a simulator did not respond."""
    time.sleep(HOUR)


def learn(queue: Any, steps: int) -> None:
    import torch
    from loop import Loop

    loop = Loop(0.05)
    for _ in range(steps):
        loop.step(torch.tensor(next_rollout(queue)))
    loop.finish()


def next_rollout(queue: Any) -> Any:
    return queue.get()


def both(steps: int, seconds: float, hangs_at: int = -1, dies_at: int = -1) -> None:
    queue = multiprocessing.get_context("spawn").Queue(4)
    actor = multiprocessing.get_context("spawn").Process(
        target=play, args=(queue, seconds, hangs_at, dies_at), daemon=True
    )
    actor.start()
    learn(queue, steps)
    actor.terminate()


def steady() -> None:
    both(200, 0.25)


def slow_rollouts() -> None:
    """Run rollouts of five seconds each."""
    both(22, 5.0)


def actor_hangs() -> None:
    both(5000, 0.25, hangs_at=80)


def actor_is_killed() -> None:
    both(5000, 0.25, dies_at=80)


if __name__ == "__main__":
    run(globals())
