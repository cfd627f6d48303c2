"""Install hooks for libraries after the training program itself has imported them.

This module does not wrap imports, so a traceback through an import looks as usual. Instead, it adds a finder,
which Python asks for each module that is not imported yet. The finder finds no modules but checks which
libraries are completely imported. The check happens soon enough because each library imports further modules
after the module named in `HOOKS`.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # avoids importing `typing`, which would cost each process more time than this module
if TYPE_CHECKING:
    from typing import Any

#: Hooks as ``<module of hooks>.<function>``, keyed by the module to wait for. A hook is called with that
#: module and the probe.
HOOKS = {
    "torch.optim.optimizer": ("torch.install", "leaving.install", "warnings.install"),
    "torch._tensor": ("losses.install",),
    "torch.amp.grad_scaler": ("losses.watch_scaler",),
    "torch.utils.data.dataloader": ("batches.install",),
    "torch.nn.modules.module": ("model_modes.install",),
    "transformers.trainer_callback": ("transformers.install", "checkpoints.watch_trainer"),
    "torch._dynamo.callback": ("phases.watch_compiler",),
    "deepspeed.runtime.engine": ("deepspeed.install", "saving.watch_engine", "checkpoints.watch_engine"),
    "deepspeed.runtime.zero.partitioned_param_coordinator": ("zero.watch_trace",),
    "deepspeed.runtime.zero.parameter_offload": ("zero.watch_backward",),
    "deepspeed.runtime.zero.partition_parameters": ("zero.watch_initialize",),
    "accelerate.accelerator": ("saving.watch_accelerator",),
    "transformers.trainer": ("saving.watch_trainer",),
    "torch.serialization": ("checkpoints.watch_torch",),
    "transformers.configuration_utils": ("checkpoints.watch_models",),
}

_VLLM_CLIENT = (("VLLMClient", "update_named_param", "weight-sync"), ("VLLMClient", "generate", "rollout"))

#: Tuples of a class, a function, and the phase that a call to the function begins, keyed by module, for
#: ``hooks.phases``. The class is "" for a function of the module itself. "train" ends any other phase. The
#: names occur in transformers 4.40 to 5.23, DeepSpeed 0.14 to 0.19, torch 2.1 to 2.13, TRL 0.14 to 1.16,
#: vLLM, and ms-swift 3. Missing names are skipped.
PHASES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "transformers.trainer": (
        ("Trainer", "training_step", "train"),
        ("Trainer", "evaluate", "eval"),
        ("Trainer", "predict", "eval"),
        ("Trainer", "prediction_step", "eval"),
        ("Trainer", "save_model", "save"),
        ("Trainer", "_save_checkpoint", "save"),
        ("Trainer", "_load_from_checkpoint", "init"),
    ),
    "transformers.generation.utils": (("GenerationMixin", "generate", "rollout"),),
    "deepspeed.runtime.engine": (
        ("DeepSpeedEngine", "backward", "train"),
        ("DeepSpeedEngine", "eval", "eval"),
        ("DeepSpeedEngine", "save_checkpoint", "save"),
        ("DeepSpeedEngine", "save_16bit_model", "save"),
        ("DeepSpeedEngine", "load_checkpoint", "init"),
    ),
    "deepspeed.runtime.pipe.engine": (
        ("PipelineEngine", "train_batch", "train"),
        ("PipelineEngine", "eval_batch", "eval"),
    ),
    "torch.distributed.checkpoint": (
        ("", "save", "save"),
        ("", "async_save", "save"),
        ("", "load", "init"),
    ),
    # If a program imports the functions `save` and `load` by name, their lookups cannot be observed. These
    # functions first call their planner, which is observed instead.
    "torch.distributed.checkpoint.default_planner": (
        ("DefaultSavePlanner", "set_up_planner", "save"),
        ("DefaultLoadPlanner", "set_up_planner", "init"),
    ),
    "torch.serialization": (
        ("_open_zipfile_writer_file", "__exit__", "save"),
        ("_open_zipfile_writer_buffer", "__exit__", "save"),
    ),
    "safetensors.torch": (("", "save_file", "save"),),
    "trl.trainer.grpo_trainer": (
        ("GRPOTrainer", "_generate_and_score_completions", "rollout"),
        ("GRPOTrainer", "_move_model_to_vllm", "weight-sync"),
    ),
    "trl.trainer.rloo_trainer": (
        ("RLOOTrainer", "_generate_and_score_completions", "rollout"),
        ("RLOOTrainer", "_move_model_to_vllm", "weight-sync"),
    ),
    "trl.generation.vllm_generation": (
        ("VLLMGeneration", "sync_weights", "weight-sync"),
        ("VLLMGeneration", "generate", "rollout"),
    ),
    "trl.generation.vllm_client": _VLLM_CLIENT,
    "trl.extras.vllm_client": _VLLM_CLIENT,
    "vllm.entrypoints.llm": (("LLM", "generate", "rollout"), ("LLM", "chat", "rollout")),
    "swift.trainers.rlhf_trainer.rollout_mixin": (
        ("RolloutTrainerMixin", "_move_model_to_vllm", "weight-sync"),
        ("RolloutTrainerMixin", "_rollout", "rollout"),
    ),
}


class Watcher:
    """Meta-path finder that finds no modules but installs the hooks for imported libraries."""

    def __init__(self) -> None:
        self._waiting = [(name, "phases.install") for name in PHASES]
        self._waiting += [(name, hook) for name, hooks in HOOKS.items() for hook in hooks]
        self._inside = False

    def find_spec(self, *_: Any) -> None:
        """Install the hooks for imported libraries. Return ``None``, which means that no module is found."""
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
        self._waiting.remove(waiting)  # removed first, so that a failed hook is not tried again
        from importlib import import_module

        from .api import current

        probe = current()
        file, _, install = hook.partition(".")
        getattr(import_module(f".hooks.{file}", __package__), install)(module, probe)

    @staticmethod
    def _failed() -> None:
        try:
            from .api import current

            current().failed()
        except Exception:
            pass


def watch() -> Watcher:
    """Start installing hooks, both for libraries that are already imported and for later imports."""
    watcher = Watcher()
    sys.meta_path.insert(0, watcher)
    watcher.find_spec()
    return watcher
