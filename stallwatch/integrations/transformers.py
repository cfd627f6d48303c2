"""``stallwatch.Callback()`` for transformers' Trainer and what builds on it: TRL, LLaMA-Factory, ms-swift.

What a trainer tells its callbacks is noticed at its handler (``probe/hooks/transformers.py``), and so is what
it tells none of them: that an evaluation, a checkpoint or a rollout begins.
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
