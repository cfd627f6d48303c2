"""Attempts on each stack: the five failures, similar programs, and healthy runs."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from .stacks import Stack


@dataclass(frozen=True)
class Attempt:
    """One program with its options, started by torchrun with two ranks."""

    name: str
    title: str  #: subject of the attempt, as a heading
    program: str
    options: tuple[str, ...] = ()
    trainer: str = ""  #: the TRL trainer that it needs; empty for plain DeepSpeed
    since: str = ""  #: the oldest DeepSpeed for which it differs from other attempts

    def fits(self, stack: Stack) -> bool:
        """Return True if the stack runs this attempt."""
        if self.since and stack.version < Version(self.since):
            return False
        return not self.trainer or self.trainer in stack.trainers


_SHORT_STALL = ("--steps", "20", "--hang-at", "9", "--pace", "0", "--timeout", "5", "--seed", "2")

ATTEMPTS = (
    Attempt(
        "eval-mode",
        "A backward pass through a model that was left in evaluation mode (ZeRO-3)",
        "backward_in_eval_mode.py",
    ),
    Attempt("model-none", "`deepspeed.initialize` without a model", "initialize_model_none.py"),
    Attempt(
        "online-dpo",
        "Online DPO training with an adapter, and therefore without a reference model (TRL, ZeRO-2)",
        "trainers/online_dpo.py",
        trainer="online-dpo",
    ),
    Attempt("dummy-loss", "A dummy loss that is a sum over partitioned parameters (ZeRO-3)", "dummy_loss.py"),
    Attempt(
        "dummy-loss-unused",
        "A dummy loss that is a sum over a module that the forward pass skips (ZeRO-3)",
        "dummy_loss.py",
        ("--unused",),
    ),
    Attempt(
        "save-unwrapped",
        "A save of the module instead of the engine (ZeRO-3, accelerate)",
        "save_unwrapped_model.py",
    ),
    Attempt("ppo", "PPO training that saves checkpoints (TRL, ZeRO-3)", "trainers/ppo.py", trainer="ppo"),
    Attempt("trace", "An invalidated trace cache (ZeRO-3, default settings)", "trace_cache.py"),
    Attempt(
        "trace-asked",
        "An invalidated trace cache with the setting `log_trace_cache_warnings` (ZeRO-3, 0.16.4 and later)",
        "trace_cache.py",
        ("--messages",),
        since="0.16.4",
    ),
    Attempt(
        "stall",
        "Trace-cache messages, followed by a rank that gets no more data (ZeRO-3)",
        "zero3_stall.py",
        _SHORT_STALL,
    ),
    Attempt("grpo", "GRPO training (TRL, ZeRO-3)", "trainers/grpo.py", trainer="grpo"),
    Attempt("sft", "SFT training (TRL, ZeRO-3)", "trainers/sft.py", trainer="sft"),
    Attempt("dpo", "DPO training (TRL, ZeRO-3)", "trainers/dpo.py", trainer="dpo"),
)
