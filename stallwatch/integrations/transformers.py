"""Define ``stallwatch.Callback()`` for transformers' Trainer, TRL, LLaMA-Factory, and ms-swift.

Stallwatch observes a trainer's calls to its callbacks in the trainer's callback handler
(``probe/hooks/transformers.py``). It also observes events that the trainer does not report to callbacks: the
start of an evaluation, a checkpoint, or a rollout.
"""

from __future__ import annotations

from transformers import TrainerCallback

from stallwatch.integrations.loop import hook


class Callback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """A callback that reports steps, phases, memory, and the numbers that transformers' Trainer logs.

    `name` is the name of the run if no agent watches it. Under ``stallwatch run``, the callback is
    unnecessary but harmless.
    """

    def __init__(self, name: str | None = None) -> None:
        hook(name)
