"""Hooks for libraries: installed after the training itself has imported them, never before.

Nothing is wrapped around an import, so a traceback through one looks as always. Instead a finder that finds
nothing is asked first for each module that is not imported yet; it looks whether one of the libraries has
finished meanwhile. Each library imports further modules after the one that is waited for.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` costs every Python of the command more than all the rest of this
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

#: The module to wait for → the hook to install then, a module of ``hooks`` with ``install(module, probe)``.
#: Several may wait for the same module.
HOOKS = (
    ("torch.optim.optimizer", "torch"),
    ("torch._tensor", "losses"),
    ("torch.amp.grad_scaler", "losses"),
    ("torch.utils.data.dataloader", "batches"),
    ("torch.nn.modules.module", "model_modes"),
    ("torch.serialization", "phases"),
    ("safetensors.torch", "phases"),
    ("transformers.trainer_callback", "transformers"),
    ("torch._dynamo.callback", "phases"),
    ("torch.distributed.checkpoint", "phases"),
    ("torch.distributed.checkpoint.default_planner", "phases"),
    ("transformers.trainer", "phases"),
    ("transformers.generation.utils", "phases"),
    ("deepspeed.runtime.engine", "phases"),
    ("deepspeed.runtime.pipe.engine", "phases"),
    ("trl.trainer.grpo_trainer", "phases"),
    ("trl.trainer.rloo_trainer", "phases"),
    ("trl.generation.vllm_generation", "phases"),
    ("trl.generation.vllm_client", "phases"),
    ("trl.extras.vllm_client", "phases"),
    ("vllm.entrypoints.llm", "phases"),
    ("swift.trainers.rlhf_trainer.rollout_mixin", "phases"),
    ("deepspeed.runtime.engine", "deepspeed"),
    ("deepspeed.runtime.zero.partitioned_param_coordinator", "zero"),
    ("deepspeed.runtime.zero.parameter_offload", "zero"),
    ("deepspeed.runtime.zero.partition_parameters", "zero"),
    ("deepspeed.runtime.engine", "saving"),
    ("accelerate.accelerator", "saving"),
    ("transformers.trainer", "saving"),
    ("torch.serialization", "checkpoints"),
    ("deepspeed.runtime.engine", "checkpoints"),
    ("transformers.trainer_callback", "checkpoints"),
    ("transformers.configuration_utils", "checkpoints"),
)


class Watcher:
    """A meta-path finder that only looks."""

    def __init__(self, hooks: Iterable[tuple[str, str]] = HOOKS) -> None:
        self._waiting = list(hooks)
        self._inside = False

    def find_spec(self, *_: Any) -> None:
        """Find nothing; install what has become due."""
        if self._waiting and not self._inside:
            self._inside = True
            try:
                for waiting in list(self._waiting):
                    if waiting[0] in sys.modules:
                        self._look(waiting)
            except Exception:
                self._failed()
            finally:
                self._inside = False

    def _look(self, waiting: tuple[str, str]) -> None:
        name, hook = waiting
        module = sys.modules[name]
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            return
        self._waiting.remove(waiting)  # first: what fails is not tried again
        from importlib import import_module

        from .api import current

        probe = current()
        import_module(f".hooks.{hook}", __package__).install(module, probe)

    @staticmethod
    def _failed() -> None:
        try:
            from .api import current

            current().failed()
        except Exception:
            pass


def watch() -> Watcher:
    """Begin to look, for libraries that are imported already and for those to come."""
    watcher = Watcher()
    sys.meta_path.insert(0, watcher)
    watcher.find_spec()
    return watcher
