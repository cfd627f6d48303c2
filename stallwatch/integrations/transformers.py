"""Define ``stallwatch.Callback()`` for TRL, LLaMA-Factory, ms-swift, and the Transformers ``Trainer``.

Stallwatch observes a trainer's calls to its callbacks in the trainer's callback handler
(``probe/hooks/transformers.py``). It also observes events that the trainer does not report to callbacks: the
starts of evaluations, checkpoints, and rollouts.
"""

from __future__ import annotations

from transformers import TrainerCallback

from stallwatch.integrations.loop import hook


class Callback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """A callback that reports steps, phases, memory, and the metrics that the Transformers ``Trainer`` logs.

    `name` is the name of the run if no agent watches it. Under ``stallwatch run``, the callback is
    unnecessary but harmless.
    """

    def __init__(self, name: str | None = None) -> None:
        hook(name)
