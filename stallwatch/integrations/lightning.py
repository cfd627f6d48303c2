"""Define ``stallwatch.LightningCallback()`` for Lightning 2 (``lightning``, ``pytorch_lightning``)."""

# ruff: noqa: ARG002
# ARG002 is off because Lightning passes all arguments to every callback.

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from stallwatch.integrations.loop import hook, probe

if TYPE_CHECKING or "pytorch_lightning" not in sys.modules:
    from lightning.pytorch import Callback as _Base
else:  # a trainer accepts only callbacks from its own package
    from pytorch_lightning import Callback as _Base


def _guarded(function: Callable[..., None]) -> Callable[..., None]:
    """Wrap a callback, so that its exceptions count as failures of the probe and do not end the training."""

    @wraps(function)
    def called(*given: Any, **named: Any) -> None:
        try:
            function(*given, **named)
        except Exception:
            probe().failed()

    return called


class LightningCallback(_Base):  # type: ignore[misc,unused-ignore]
    """A callback that reports the steps, losses, and phases of the Lightning Trainer.

    `name` is the name of the run if no agent watches it.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name
        self._step = -1

    @_guarded
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Install the hooks in the process that trains.

        The hooks cannot be installed earlier, because a strategy that spawns its ranks pickles the callbacks.
        """
        hook(self._name)

    @_guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start counting at the trainer's step number, which is not 0 if the training run is resumed."""
        current = probe()
        self._step = trainer.global_step
        current.reported_by_user = True
        current.steps = float(self._step)
        if 0 < trainer.estimated_stepping_batches < float("inf"):
            current.value("target_steps", float(trainer.estimated_stepping_batches))

    @_guarded
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report an optimizer step. With gradient accumulation, not every batch completes a step."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        optimizers = trainer.optimizers
        rate = optimizers[0].param_groups[0].get("lr") if optimizers else None
        probe().step(self._step, loss=loss, learning_rate=rate)

    @_guarded
    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Report an evaluation. An evaluation can also take place before the training."""
        probe().phase("eval")

    on_test_batch_start = on_validation_batch_start
    on_predict_batch_start = on_validation_batch_start

    @_guarded
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the end of the evaluation."""
        probe().phase("train" if self._step > 0 else "init")

    @_guarded
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Report that a checkpoint is being saved. Lightning writes the checkpoint after this call."""
        probe().phase("save")

    @_guarded
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Report that training continues after another phase."""
        current = probe()
        if current.doing not in ("train", "init"):
            current.phase("train" if self._step > 0 else "init")

    @_guarded
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop reporting for this trainer, because later steps do not belong to it."""
        current = probe()
        current.reported_by_user = False
        current.phase("idle")
