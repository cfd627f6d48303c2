"""What DeepSpeed asserts of its ZeRO settings when the engine is made.

Each function names the assertion that it foretells; the versions are those in whose source it was read.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from stallwatch_lint.diagnostic import Diagnostic, Severity, Words
from stallwatch_lint.dsconfig import DsConfig, number, whole
from stallwatch_rules.messages import Message

_RULE = "deepspeed-config-invalid"
_ZERO = "zero_optimization"
_WHOLE_NUMBERS = (
    "reduce_bucket_size",
    "allgather_bucket_size",
    "sub_group_size",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
)


def check_zero(config: DsConfig, deepspeed: Version | None) -> Iterator[Diagnostic]:
    """All checks of the ZeRO settings."""
    yield from _stage(config)
    yield from _legacy(config)
    yield from _nvme(config)
    yield from _offload_stage(config)
    yield from _scaling(config)
    yield from _fractions(config, deepspeed)
    yield from _old_and_new(config)


def _stage(config: DsConfig) -> Iterator[Diagnostic]:
    """``ZeroStageEnum`` knows 0 to 3 (0.9.0 to 0.19.8, ``runtime/zero/config.py``)."""
    stage = whole(config.get(_ZERO, "stage"))
    if stage is not None and stage not in (0, 1, 2, 3):
        yield _diagnostic(
            config,
            "stage",
            "zero-stage-unknown",
            Words(f"there is no ZeRO stage {stage}", f"没有 ZeRO stage {stage}"),
            Words("DeepSpeed knows the stages 0 to 3.", "DeepSpeed 只有 0 到 3。"),
            Words("Write 0, 1, 2 or 3.", "写 0、1、2 或 3。"),
        )


def _legacy(config: DsConfig) -> Iterator[Diagnostic]:
    """``_configure_zero_optimizer`` raises for it (0.9.0 to 0.19.8, ``runtime/engine.py``)."""
    if config.on(_ZERO, "legacy_stage1") and config.stage:
        yield _diagnostic(
            config,
            "legacy_stage1",
            "zero-legacy-stage1",
            Words("legacy_stage1 no longer exists", "legacy_stage1 已不存在"),
            Words(
                "DeepSpeed raises an exception for it since 0.5.9.", "自 0.5.9 起 DeepSpeed 会为它抛出异常。"
            ),
            Words("Take the key out.", "删掉这个键。"),
        )


def _nvme(config: DsConfig) -> Iterator[Diagnostic]:
    """ZeRO-3 makes its folder with ``os.path.join(nvme_path, …)``, and asserts a path for parameters
    (0.9.0 to 0.19.8, ``runtime/zero/stage3.py``, ``partition_parameters.py``)."""
    if config.stage != 3:
        return
    for part in ("offload_param", "offload_optimizer"):
        if config.get(_ZERO, part, "device") == "nvme" and not config.get(_ZERO, part, "nvme_path"):
            yield _diagnostic(
                config,
                part,
                "nvme-without-path",
                Words(
                    f"{part} goes to nvme, but nvme_path is not set",
                    f"{part} 使用 nvme，但没有设置 nvme_path",
                ),
                Words(
                    "DeepSpeed puts its swap files below this folder.", "DeepSpeed 把交换文件放在这个目录下。"
                ),
                Words(
                    f'Name a folder on a local disk: "{part}":'
                    f' {{"device": "nvme", "nvme_path": "/local_nvme"}}.',
                    f'指定本地盘上的目录："{part}": {{"device": "nvme", "nvme_path": "/local_nvme"}}。',
                ),
            )


def _offload_stage(config: DsConfig) -> Iterator[Diagnostic]:
    """``offload_ratio_check`` (0.12.3 to 0.19.8, ``runtime/zero/config.py``); ``offload_param`` is read by
    ZeRO-3 only (its docstring in ``runtime/zero/offload_config.py``)."""
    if config.stage is None or config.stage == 3:
        return
    ratio = number(config.get(_ZERO, "offload_optimizer", "ratio"))
    if ratio is not None and ratio < 1:
        yield _diagnostic(
            config,
            "offload_optimizer",
            "offload-ratio-stage",
            Words(
                f"offload_optimizer.ratio {ratio:g} needs ZeRO-3",
                f"offload_optimizer.ratio {ratio:g} 需要 ZeRO-3",
            ),
            Words(
                "DeepSpeed asserts that partial offload is used with stage 3.",
                "DeepSpeed 断言部分卸载只能用于 stage 3。",
            ),
            Words('Set "stage": 3, or take ratio out.', '设 "stage": 3，或删掉 ratio。'),
        )
    if config.get(_ZERO, "offload_param", "device") in ("cpu", "nvme"):
        yield _diagnostic(
            config,
            "offload_param",
            "offload-param-ignored",
            Words(
                f"offload_param does nothing at ZeRO stage {config.stage}",
                f"ZeRO stage {config.stage} 下 offload_param 不起作用",
            ),
            Words(
                "Only stage 3 partitions parameters, and so can move them away.",
                "只有 stage 3 切分参数，才能把参数移走。",
            ),
            Words('Set "stage": 3, or take offload_param out.', '设 "stage": 3，或删掉 offload_param。'),
            "advice",
        )


def _scaling(config: DsConfig) -> Iterator[Diagnostic]:
    """With ``reduce_scatter`` (the default) the optimizers of stage 2 and 3 assert that gradients are not
    scaled before (0.9.0 to 0.19.8, ``runtime/zero/stage_1_and_2.py`` and ``stage3.py``)."""
    if config.stage not in (2, 3) or config.get(_ZERO, "reduce_scatter", default=True) is not True:
        return
    factor = number(config.get("gradient_predivide_factor"))
    for key, wrong in (
        ("prescale_gradients", config.on("prescale_gradients")),
        ("gradient_predivide_factor", factor not in (None, 1.0)),
    ):
        if wrong:
            yield Diagnostic(
                "zero-gradient-scaling",
                "fails",
                Words(
                    f"{key} does not go with ZeRO stage {config.stage}",
                    f"{key} 不能与 ZeRO stage {config.stage} 同用",
                ),
                Words(
                    "With reduce_scatter on, DeepSpeed asserts that gradients are averaged"
                    " afterwards, undivided.",
                    "开启 reduce_scatter 时，DeepSpeed 断言梯度不预先缩放。",
                ),
                Words(
                    f'Take {key} out, or set "reduce_scatter": false.',
                    f'删掉 {key}，或设 "reduce_scatter": false。',
                ),
                _RULE,
                config.file,
                config.line(key),
            )


def _fractions(config: DsConfig, deepspeed: Version | None) -> Iterator[Diagnostic]:
    """Since 0.15.0 the models are pydantic 2's, whose ``int`` refuses a fraction."""
    if deepspeed is not None and deepspeed < Version("0.15.0"):
        return
    for key in _WHOLE_NUMBERS:
        value = number(config.get(_ZERO, key))
        if value is not None and value != int(value):
            yield _diagnostic(
                config,
                key,
                "config-fraction",
                Words(f"{key} is {value}, not a whole number", f"{key} 为 {value}，不是整数"),
                Words(
                    "DeepSpeed 0.15 and newer refuse a fraction here.",
                    "DeepSpeed 0.15 及以上在这里拒绝小数。",
                ),
                Words(f"Write {int(value)}.", f"写 {int(value)}。"),
                "fails" if deepspeed is not None else "likely",
            )


def _old_and_new(config: DsConfig) -> Iterator[Diagnostic]:
    """An old key and its successor together raise (0.9.0 to 0.19.8, ``runtime/config_utils.py``)."""
    for old, new in (
        ("cpu_offload", "offload_optimizer"),
        ("cpu_offload_param", "offload_param"),
        ("stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"),
    ):
        if config.on(_ZERO, old) and config.get(_ZERO, new) is not None:
            yield _diagnostic(
                config,
                old,
                "config-old-and-new-key",
                Words(f"{old} and its successor {new} are both set", f"{old} 与取代它的 {new} 同时出现"),
                Words(
                    "DeepSpeed asserts that only one of the two is given.", "DeepSpeed 断言两者只能给一个。"
                ),
                Words(f"Keep {new}.", f"保留 {new}。"),
            )


def _diagnostic(
    config: DsConfig,
    key: str,
    check: str,
    what: Message,
    why: Message,
    fix: Message,
    severity: Severity = "fails",
) -> Diagnostic:
    return Diagnostic(check, severity, what, why, fix, _RULE, config.file, config.line(_ZERO, key))
