"""Define ``stallwatch.Callback()`` for transformers' Trainer, TRL, LLaMA-Factory and ms-swift.

Stallwatch observes the calls of a trainer to its callbacks in the trainer's handler
(``probe/hooks/transformers.py``), and also events that the trainer passes to no callback: the start of an
evaluation, a checkpoint or a rollout.
"""

from __future__ import annotations

from transformers import TrainerCallback

from stallwatch.integrations.loop import hook


class Callback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Reports steps, phases, memory and the numbers that transformers' Trainer logs.

    `name` is the run's name if no agent watches it. Under ``stallwatch run`` the callback is unnecessary, but
    harmless.
    """

    def __init__(self, name: str | None = None) -> None:
        hook(name)
