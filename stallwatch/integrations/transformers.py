"""``stallwatch.Callback()`` for transformers' Trainer and libraries on top: TRL, LLaMA-Factory, ms-swift.

The calls of a trainer to its callbacks are observed in its handler (``probe/hooks/transformers.py``), and so
are events that it passes to no callback: the start of an evaluation, a checkpoint or a rollout.
"""

from __future__ import annotations

from transformers import TrainerCallback

from stallwatch.integrations.loop import hook


class Callback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Reports steps, phases, memory and the numbers that transformers' Trainer logs.

    `name` is that of the run if no agent watches it. Under ``stallwatch run`` the callback is not needed, and
    does no harm.
    """

    def __init__(self, name: str | None = None) -> None:
        hook(name)
