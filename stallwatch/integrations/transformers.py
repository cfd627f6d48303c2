"""``stallwatch.Callback()`` for transformers' Trainer and what builds on it: TRL, LLaMA-Factory, ms-swift."""

# ruff: noqa: ARG002
# transformers passes all of it to every callback, some by name.

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from stallwatch.integrations.loop import probe

_TOLD = {"loss": "loss", "grad_norm": "grad_norm", "learning_rate": "learning_rate"}


class Callback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Tells of steps, phases and the numbers that the trainer logs."""

    def __init__(self, name: str | None = None) -> None:
        self._probe = probe(name)
        self._evaluating = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The trainer counts the steps from here on."""
        self._probe.told_by_user = True
        self._probe.steps = state.global_step
        if state.max_steps and state.max_steps > 0:
            self._probe.value("target_steps", state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An optimizer step is done."""
        self._probe.step(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Numbers of the last steps; newer versions tell them as text."""
        for name, field in _TOLD.items():
            if logs and name in logs:
                try:
                    self._probe.value(field, float(logs[name]))
                except (TypeError, ValueError):
                    continue

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A batch of an evaluation: once told is enough."""
        if not self._evaluating:
            self._evaluating = True
            self._probe.phase("eval")

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The evaluation is over."""
        self._evaluating = False
        self._probe.phase("train")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Whatever steps now is not this trainer's."""
        self._probe.told_by_user = False
