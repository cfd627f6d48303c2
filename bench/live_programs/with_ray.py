"""Training in which Ray actors send rollouts to a learner actor through Ray's own processes."""

from __future__ import annotations

import math
import time
from typing import Any

from common import CHANCE, HOUR, event, run


class Player:
    """An actor that produces rollouts of varying lengths and blocks in rollout number `hangs_at`."""

    def __init__(self, hangs_at: int) -> None:
        self._number, self._hangs_at = 0, hangs_at

    def play(self) -> list[list[float]]:
        import torch

        self._number += 1
        if self._number == self._hangs_at:
            self.step_environment()
        time.sleep(0.4 * math.exp(CHANCE.gauss(0, 0.3)))
        rows: list[list[float]] = torch.randn(8, 16).tolist()
        return rows

    def step_environment(self) -> None:
        """Wait for an hour, as if a simulator did not respond."""
        event("environment")
        time.sleep(HOUR)


class Learner:
    """An actor that trains."""

    def learn(self, player: Any, steps: int) -> None:
        import ray
        import torch
        from loop import Loop

        loop = Loop(0.05, total=steps)
        for _ in range(steps):
            loop.step(torch.tensor(ray.get(player.play.remote())))
        loop.finish()


def both(steps: int, hangs_at: int = -1) -> None:
    """On this machine, start Ray, an actor that plays, and an actor that trains."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True)
    player = ray.remote(Player).remote(hangs_at)
    learner = ray.remote(Learner).remote()
    ray.get(learner.learn.remote(player, steps))
    ray.shutdown()


def steady() -> None:
    both(150)


def player_hangs() -> None:
    both(10_000, hangs_at=60)


if __name__ == "__main__":
    run(globals())
