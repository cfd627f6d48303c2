"""What trainers call the same number: the names in their dictionaries, and their unit in ours."""

from __future__ import annotations

from typing import NamedTuple


class Found(NamedTuple):
    """The numbers of a line, before the line's own rank and time are put to them."""

    step: int | None
    total: int | None
    values: dict[str, float]
    series: str  #: which counter; empty where it is none that shows progress


GIB = 1024.0**3
MIB = 1024.0**2
INVERSE = 0.0  #: the name tells steps a second; we keep seconds a step

_NAMES: dict[str, tuple[tuple[str, ...], float]] = {
    # field: (names, factor); a name in lower case, without a leading "train/"
    "loss": (("loss", "train_loss", "lm loss", "actor/pg_loss", "policy_loss", "loss/train/total"), 1),
    "eval_loss": (("eval_loss", "eval/loss", "val_loss", "val/loss", "valid_loss", "validation_loss"), 1),
    "grad_norm": (("grad_norm", "gradient_norm", "grad norm", "actor/grad_norm", "global_grad_norm",
                   "gnorm", "train_gnorm"), 1),
    "learning_rate": (("learning_rate", "lr", "train_lr", "actor/lr", "actor_lr"), 1),
    "loss_scale": (("loss_scale",), 1),
    "epoch": (("epoch",), 1),
    "reward": (
        ("reward", "objective/rlhf_reward", "critic/rewards/mean", "critic/score/mean", "reward/mean"),
        1,
    ),
    "reward_chosen": (("rewards/chosen", "rewards_train/chosen"), 1),
    "reward_rejected": (("rewards/rejected", "rewards_train/rejected"), 1),
    "reward_margin": (("rewards/margins", "rewards_train/margins"), 1),
    "reward_accuracy": (("rewards/accuracies", "rewards_train/accuracies"), 1),
    "kl": (("kl", "objective/kl", "actor/ppo_kl", "actor/kl", "policy/approxkl_avg"), 1),
    "train_runtime": (("train_runtime",), 1),
    "step_seconds": (("step_time", "timing_s/step", "train_speed(s/it)", "time_per_step"), 1),
    "samples_per_second": (
        ("samples_per_second", "train_samples_per_second", "eval_samples_per_second", "samples/s",
         "samples/sec", "interval_samples_per_second"),
        1,
    ),
    "tokens_per_second": (
        ("tokens_per_second", "train_tokens_per_second", "tokens/s", "tokens/sec", "tps", "tgs",
         "throughput(tps)", "perf/throughput", "tokens_per_second_per_gpu", "tokens_per_sec_per_gpu"),
        1,
    ),
}  # fmt: skip
_MEMORY_NAMES: dict[str, tuple[str, ...]] = {
    "memory_peak_bytes": (
        "memory(gib)", "memory/max_active (gib)", "memory/max_mem_active(gib)", "memory/max_active(gib)",
        "peak_memory_active", "perf/max_memory_reserved_gb", "memory/max_reserved(gib)",
    ),
    "memory_allocated_bytes": (
        "memory/max_allocated (gib)", "memory/max_mem_allocated(gib)", "perf/max_memory_allocated_gb",
        "memory/allocated (gib)",
    ),
}  # fmt: skip

FIELDS: dict[str, tuple[str, float]] = {
    **{name: (field, factor) for field, (names, factor) in _NAMES.items() for name in names},
    **{name: (field, GIB) for field, names in _MEMORY_NAMES.items() for name in names},
    "train_speed(iter/s)": ("step_seconds", INVERSE),
}
"""name → our field and the factor; the names that mean no training step are not here."""


def put(values: dict[str, float], name: str, value: float) -> None:
    """Put a trainer's number among the values under our name, if it is one of ours; the first of each stays,
    but what is simply called the loss goes before other losses."""
    lower = name.lower()
    field = FIELDS.get(lower) or FIELDS.get(lower.removeprefix("train/"))
    if field is None:
        return
    ours, factor = field
    if factor == INVERSE:
        if value > 0:
            values.setdefault(ours, 1 / value)
    elif lower == ours:
        values[ours] = value
    else:
        values.setdefault(ours, value * factor)
