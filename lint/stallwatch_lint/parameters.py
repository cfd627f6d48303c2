"""Parameters of the optimizer and scheduler that their constructors do not take.

DeepSpeed hands ``params`` on as keyword arguments (0.19.8, ``runtime/engine.py``,
``_configure_basic_optimizer`` and ``_scheduler_from_config``) unless the script hands an optimizer over
itself; hence "likely" at most. Known are DeepSpeed's own schedulers (0.19.8, ``runtime/lr_schedules.py``) and
Adam, which is FusedAdam, DeepSpeedCPUAdam (0.19.8, ``ops/adam``) or torch's (2.13.0), by the machine and the
offloading: what one of the three takes is taken here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from stallwatch_lint.diagnostic import Diagnostic, Words
from stallwatch_lint.dsconfig import AUTO, DsConfig

_RULE = "deepspeed-config-invalid"
_WARMUP = {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "last_batch_iteration"}
SCHEDULERS: Mapping[str, set[str]] = {
    "WarmupLR": _WARMUP,
    "WarmupDecayLR": _WARMUP | {"total_num_steps"},
    "WarmupCosineLR": {
        "total_num_steps",
        "warmup_min_ratio",
        "warmup_num_steps",
        "cos_min_ratio",
        "warmup_type",
        "last_batch_iteration",
    },
    "LRRangeTest": {
        "lr_range_test_min_lr",
        "lr_range_test_step_size",
        "lr_range_test_step_rate",
        "lr_range_test_staircase",
        "last_batch_iteration",
    },
    "OneCycle": {
        "cycle_min_lr",
        "cycle_max_lr",
        "decay_lr_rate",
        "cycle_first_step_size",
        "cycle_second_step_size",
        "cycle_first_stair_count",
        "cycle_second_stair_count",
        "decay_step_size",
        "cycle_momentum",
        "cycle_min_mom",
        "cycle_max_mom",
        "decay_mom_rate",
        "last_batch_iteration",
    },
}
ADAM = {
    *("lr", "betas", "eps", "weight_decay", "amsgrad", "bias_correction"),
    *("set_grad_none", "adamw_mode", "fp32_optimizer_states"),  # DeepSpeed's
    *("maximize", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"),  # torch's
    *("torch_adam", "adam_w_mode"),  # DeepSpeed takes them out itself
    *("overlap_step", "max_grad_norm"),  # ZenFlow's; of the other ``optimizers`` speaks
}
#: calculated with by every optimizer and scheduler that has them
_NUMBERS = {
    *("lr", "betas", "eps", "weight_decay", "momentum"),
    *("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps", "warmup_min_ratio"),
    *("cos_min_ratio", "cycle_min_lr", "cycle_max_lr"),
}


def check_parameters(config: DsConfig) -> Iterator[Diagnostic]:
    """Unknown names, and numbers in quotes (``"lr": "1e-4"``)."""
    optimizer, scheduler = config.get("optimizer", "type"), config.get("scheduler", "type")
    adam = isinstance(optimizer, str) and optimizer.lower() in ("adam", "adamw")
    for part, name, known in (
        ("optimizer", optimizer, ADAM if adam else None),
        ("scheduler", scheduler, SCHEDULERS.get(scheduler) if isinstance(scheduler, str) else None),
    ):
        for key, value in config.section(part, "params").items():
            if known is not None and key not in known:
                yield _unknown(config, part, str(name), key, known)
            elif key in _NUMBERS and (text := _text(value)) is not None:
                yield _in_quotes(config, part, key, text)


def _text(value: Any) -> str | None:
    """The first text where a number should stand."""
    several = value if isinstance(value, list) else [value]
    return next((one for one in several if isinstance(one, str) and one != AUTO), None)


def _unknown(config: DsConfig, part: str, name: str, key: str, known: set[str]) -> Diagnostic:
    near = difflib.get_close_matches(str(key), sorted(known), n=1, cutoff=0.75)
    return Diagnostic(
        "parameter-unknown",
        "likely",
        Words(f"{name} takes no parameter {key}", f"{name} 没有参数 {key}"),
        Words(
            "DeepSpeed hands params on to the constructor: a TypeError about an unexpected keyword argument.",
            "DeepSpeed 把 params 原样传给构造函数，于是抛出 unexpected keyword argument 的 TypeError。",
        ),
        Words(f"Did you mean {near[0]}?", f"是否想写 {near[0]}？")
        if near
        else Words("Take it out.", "删掉它。"),
        _RULE,
        config.file,
        config.line(part, "params", key),
    )


def _in_quotes(config: DsConfig, part: str, key: str, text: str) -> Diagnostic:
    return Diagnostic(
        "parameter-in-quotes",
        "likely",
        Words(f'{part}.params.{key} is the text "{text}"', f'{part}.params.{key} 是文本 "{text}"'),
        Words(
            "Optimizers and schedulers calculate with it as it stands: a TypeError or ValueError; the Trainer"
            " finds that it differs from its own number.",
            "优化器和调度器直接用它计算，会抛出 TypeError 或 ValueError；Trainer 会认为它与自己的值不同。",
        ),
        Words("Write the number without quotes.", "去掉引号，写成数字。"),
        _RULE,
        config.file,
        config.line(part, "params", key),
    )
