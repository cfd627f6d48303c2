"""accelerate's configuration as the DeepSpeed configuration that accelerate makes of it.

The names are those of ``DeepSpeedPlugin`` and of the launcher (accelerate 1.15.0, ``utils/dataclasses.py``
and
``utils/launch.py``): what stands under ``deepspeed_config`` becomes an environment variable, and that a value
of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from stallwatch_lint.diagnostic import Diagnostic, Words
from stallwatch_lint.dsconfig import DsConfig, Path
from stallwatch_lint.parse import Parsed, key_lines

_TARGETS: Mapping[str, Path] = {
    "zero_stage": ("zero_optimization", "stage"),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "gradient_clipping": ("gradient_clipping",),
    "zero3_save_16bit_model": ("zero_optimization", "stage3_gather_16bit_weights_on_model_save"),
    "offload_optimizer_device": ("zero_optimization", "offload_optimizer", "device"),
    "offload_optimizer_nvme_path": ("zero_optimization", "offload_optimizer", "nvme_path"),
    "offload_param_device": ("zero_optimization", "offload_param", "device"),
    "offload_param_nvme_path": ("zero_optimization", "offload_param", "nvme_path"),
}
_DEFAULT_STAGE = 2  # ``ACCELERATE_DEEPSPEED_ZERO_STAGE``


def parse_accelerate(text: str, file: str) -> Parsed:
    """accelerate's YAML; ``config`` is ``None`` without a diagnostic where there is no DeepSpeed in it."""
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        return Parsed(None, [_unreadable(file, error)])
    if not isinstance(values, dict):
        return Parsed(None, [_unreadable(file, ValueError("no keys at the top"))])
    settings = values.get("deepspeed_config")
    if not isinstance(settings, dict):
        if "zero_optimization" in values or "train_micro_batch_size_per_gpu" in values:
            return Parsed(
                DsConfig(values, file, key_lines(text)), []
            )  # DeepSpeed's own keys, written as YAML
        return Parsed(None, [])
    world_size = values.get("num_processes")
    lines = key_lines(text)
    other = settings.get("deepspeed_config_file")
    config = _made(settings, values, file, lines, world_size if isinstance(world_size, int) else None)
    return Parsed(config, [], other if isinstance(other, str) and other != "none" else None)


def _made(
    settings: Mapping[str, Any],
    values: Mapping[str, Any],
    file: str,
    lines: Mapping[Path, int],
    world: int | None,
) -> DsConfig:
    made: dict[str, Any] = {"zero_optimization": {"stage": _DEFAULT_STAGE}}
    places: dict[Path, int] = {}
    for name, target in _TARGETS.items():
        if name not in settings or settings[name] in ("none", None):
            continue
        parent = made
        for key in target[:-1]:
            parent = parent.setdefault(key, {})
        parent[target[-1]] = settings[name]
        if line := lines.get(("deepspeed_config", name)):
            places[target] = line
    precision = values.get("mixed_precision")
    if precision in ("bf16", "fp16"):
        made[precision] = {"enabled": True}
    if line := lines.get(("deepspeed_config",)):
        places["zero_optimization",] = line
    return DsConfig(made, file, places, world_size=world, accelerate=True)


def _unreadable(file: str, error: Exception) -> Diagnostic:
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or str(error)
    return Diagnostic(
        "config-unreadable",
        "fails",
        Words(f"this cannot be read as YAML: {reason}", f"无法按 YAML 读取：{reason}"),
        Words("accelerate stops before the first step.", "accelerate 会在第一步之前停止。"),
        Words("Mend the line, or run accelerate config again.", "改正这一行，或重新运行 accelerate config。"),
        "deepspeed-config-invalid",
        file,
        mark.line + 1 if mark is not None else 1,
    )
