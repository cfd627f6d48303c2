"""Values of a kind that DeepSpeed does not take: a word for a number, ``"5e8"``, an object for a flag.

The kinds are those of the fields of ``DeepSpeedZeroConfig`` (``runtime/zero/config.py``),
``DeepSpeedZeroOffload{Param,Optimizer}Config`` (``runtime/zero/offload_config.py``) and
``DeepSpeed{FP16,BF16}Config`` (``runtime/precision_config.py``) of DeepSpeed 0.19.8, which pydantic 2 reads:
``"500000000"`` is a whole number to it, ``"5e8"`` is none. What stands at the top is not validated: DeepSpeed
calculates with it (``runtime/config.py``, ``runtime/engine.py``), so a text in quotes ends in a TypeError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from packaging.version import Version

from stallwatch_lint.config_keys import FIRST_KNOWN, SECTIONS
from stallwatch_lint.diagnostic import Diagnostic, Severity, Words
from stallwatch_lint.dsconfig import AUTO, DsConfig, Path, number, whole
from stallwatch_lint.script import Script
from stallwatch_rules.messages import Message

_RULE = "deepspeed-config-invalid"
_ZERO = ("zero_optimization",)
_ACCELERATED = {"accelerate", "transformers", "trl"}
_FLAGS = {"true", "false", "t", "f", "yes", "no", "y", "n", "on", "off", "1", "0"}

KindName = Literal["whole", "number", "flag", "object", "device"]


class Kind(NamedTuple):
    """What a value must be; ``null`` where the field is optional."""

    name: KindName
    optional: bool = False


_WHOLE, _NUMBER, _FLAG, _DEVICE = Kind("whole"), Kind("number"), Kind("flag"), Kind("device")
_SAYS: Mapping[KindName, Message] = {
    "whole": Words("a whole number", "整数"),
    "number": Words("a number", "数字"),
    "flag": Words("true or false", "true 或 false"),
    "object": Words("an object in braces", "花括号中的对象"),
    "device": Words('"none", "cpu" or "nvme"', '"none"、"cpu" 或 "nvme"'),
}
_THRESHOLDS = (
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "model_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
    "module_granularity_threshold",
)


def _all(kind: Kind, *names: str) -> dict[str, Kind]:
    return dict.fromkeys(names, kind)


KINDS: Mapping[Path, Mapping[str, Kind]] = {
    _ZERO: {
        **_all(_WHOLE, "reduce_bucket_size", "allgather_bucket_size", "sub_group_size", *_THRESHOLDS),
        **_all(_WHOLE, *(f"stage3_{name}" for name in _THRESHOLDS), "zero_hpz_partition_size", "stage"),
        **_all(
            _FLAG,
            "contiguous_gradients",
            "reduce_scatter",
            "use_multi_rank_bucket_allreduce",
            "allgather_partitions",
            "load_from_fp32_weights",
            "elastic_checkpoint",
            "gather_16bit_weights_on_model_save",
            "stage3_gather_16bit_weights_on_model_save",
            "ignore_unused_parameters",
            "round_robin_gradients",
            "zero_quantized_weights",
            "zero_quantized_nontrainable_weights",
            "zero_quantized_gradients",
            "memory_efficient_linear",
            "override_module_apply",
            "log_trace_cache_warnings",
        ),
        "overlap_comm": Kind("flag", optional=True),
        "offload_param": Kind("object", optional=True),
        "offload_optimizer": Kind("object", optional=True),
    },
    (*_ZERO, "offload_param"): {
        "device": _DEVICE,
        **_all(_WHOLE, "buffer_count", "buffer_size", "max_in_cpu"),
        "pin_memory": _FLAG,
    },
    (*_ZERO, "offload_optimizer"): {
        "device": _DEVICE,
        "buffer_count": _WHOLE,
        **_all(_FLAG, "pin_memory", "pipeline_read", "pipeline_write", "fast_init"),
        "ratio": _NUMBER,
    },
    ("fp16",): {
        **_all(_FLAG, "enabled", "auto_cast", "consecutive_hysteresis"),
        "loss_scale": _NUMBER,
        **_all(_WHOLE, "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"),
    },
    ("bf16",): _all(_FLAG, "enabled", "immediate_grad_update", "check_grad_overflow"),
}
_COUNTED = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "steps_per_print",
)


def check_values(config: DsConfig, deepspeed: Version | None) -> Iterator[Diagnostic]:
    """Values that the models refuse, and texts where DeepSpeed calculates.

    Fractions and stages that there are not have checks of their own (``zero``). Up to 0.17.0 ``fp16`` and
    ``bf16`` were read without validation.
    """
    for path, kinds in KINDS.items():
        since = SECTIONS[path].strict.since
        if deepspeed is not None and deepspeed < Version(since):
            continue
        certain = deepspeed is not None or since == FIRST_KNOWN
        for key, value in config.section(*path).items():
            kind = kinds.get(key)
            if kind is None or value == AUTO or (value is None and kind.optional) or _TAKES[kind.name](value):
                continue
            yield _refused(config, (*path, key), value, kind, "fails" if certain else "likely")
    for key in _COUNTED:
        value = config.get(key)
        if isinstance(value, str) and value != AUTO:
            yield _text(config, key, value)


def check_quoted_stage(config: DsConfig, scripts: Sequence[Script]) -> Iterator[Diagnostic]:
    """``"stage": "3"``, for scripts that train through accelerate: to DeepSpeed it is 3, to the others none.

    accelerate 1.15.0, ``utils/deepspeed.py`` (``is_zero3``, which transformers 5.23.0 asks in
    ``integrations/deepspeed.py``) and ``accelerator.py`` (``get_state_dict``).
    """
    value = config.get(*_ZERO, "stage")
    if not isinstance(value, str) or config.stage != 3:
        return
    if any(script.imports & _ACCELERATED and not script.deepspeed_itself for script in scripts):
        yield Diagnostic(
            "stage-in-quotes",
            "likely",
            Words(f"the stage is the text {_shown(value)}", f"stage 是文本 {_shown(value)}"),
            Words(
                "DeepSpeed reads it as ZeRO-3, transformers and accelerate do not: each rank loads the whole"
                " model, generation is not kept in step, and what is saved is partitioned.",
                "DeepSpeed 按 ZeRO-3 读取，而 transformers 和 accelerate 不会：每个 rank 都加载整个模型，"
                "生成不同步，保存的是切分后的权重。",
            ),
            Words("Write 3, without quotes.", "去掉引号，写 3。"),
            _RULE,
            config.file,
            config.line(*_ZERO, "stage"),
        )


def _is_whole(value: Any) -> bool:
    return whole(value) is not None or number(value) is not None  # of fractions ``zero`` speaks


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"\s*[+-]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", value) is not None
    return isinstance(value, (bool, int, float))


def _is_flag(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in _FLAGS
    return isinstance(value, (bool, int, float)) and value in (0, 1)


_TAKES: Mapping[KindName, Callable[[Any], bool]] = {
    "whole": _is_whole,
    "number": _is_number,
    "flag": _is_flag,
    "object": lambda value: isinstance(value, Mapping),
    "device": lambda value: value in ("none", "cpu", "nvme"),
}


def _refused(config: DsConfig, path: Path, value: Any, kind: Kind, severity: Severity) -> Diagnostic:
    name, says, shown = ".".join(path), _SAYS[kind.name], _shown(value)
    plain = _plain(value) if kind.name in ("whole", "number") else None
    fix = None if plain is None else str(plain)
    return Diagnostic(
        "config-value-kind",
        severity,
        Words(f"{name} is {shown}, not {says.params['en']}", f"{name} 为 {shown}，不是{says.params['zh']}"),
        Words(
            "DeepSpeed validates this object: the run ends with a ValidationError before its first step.",
            "DeepSpeed 会校验这个对象：训练在第一步之前就以 ValidationError 结束。",
        ),
        Words(f"Write {fix or says.params['en']}.", f"写 {fix or says.params['zh']}。"),
        _RULE,
        config.file,
        config.line(*path),
    )


def _text(config: DsConfig, key: str, value: str) -> Diagnostic:
    plain = _plain(value)
    return Diagnostic(
        "config-value-kind",
        "fails",
        Words(f"{key} is the text {_shown(value)}", f"{key} 是文本 {_shown(value)}"),
        Words(
            "DeepSpeed calculates with it as it stands: a TypeError when the engine is made.",
            "DeepSpeed 直接用它计算：创建 engine 时就抛出 TypeError。",
        ),
        Words(f"Write {plain if plain is not None else 'a number'}, without quotes.", "去掉引号，写成数字。"),
        _RULE,
        config.file,
        config.line(key),
    )


def _plain(value: Any) -> int | float | None:
    """The number that stands in a text; ``None`` where there is none."""
    try:
        found = number(float(value)) if isinstance(value, str) else None
    except ValueError:
        return None
    return int(found) if found is not None and found == int(found) else found


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "…"
