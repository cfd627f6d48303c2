"""Number formats that exclude each other.

DeepSpeed 0.9.0 to 0.19.8, ``runtime/config.py``: fp16 and bf16 may not both be on. Up to 0.19.5 (0.19.8
has no
amp any more), ``runtime/engine.py``, ``_do_optimizer_sanity_check``: amp does not go with any ZeRO stage.
"""

from __future__ import annotations

from collections.abc import Iterator

from stallwatch_lint.diagnostic import Diagnostic, Words
from stallwatch_lint.dsconfig import DsConfig

_RULE = "deepspeed-config-invalid"


def check_precision(config: DsConfig) -> Iterator[Diagnostic]:
    """fp16 beside bf16, amp beside ZeRO."""
    bf16 = "bf16" if config.has("bf16") else "bfloat16"
    if config.on("fp16", "enabled") and config.on(bf16, "enabled"):
        yield Diagnostic(
            "fp16-and-bf16",
            "fails",
            Words("fp16 and bf16 are both enabled", "fp16 和 bf16 同时开启"),
            Words("DeepSpeed asserts that at most one of them is on.", "DeepSpeed 断言两者最多开一个。"),
            Words(
                "Keep bf16 where the accelerator has it: it needs no loss scaling.",
                "加速卡支持时保留 bf16：它不需要 loss scale。",
            ),
            _RULE,
            config.file,
            config.line("fp16", "enabled"),
        )
    if config.on("amp", "enabled") and config.stage:
        yield Diagnostic(
            "amp-with-zero",
            "fails",
            Words(
                f"amp together with ZeRO stage {config.stage}", f"amp 与 ZeRO stage {config.stage} 同时使用"
            ),
            Words(
                "DeepSpeed asserts that Apex AMP and ZeRO are not combined.",
                "DeepSpeed 断言 Apex AMP 不能与 ZeRO 同用。",
            ),
            Words('Use "bf16" or "fp16" instead of "amp".', '用 "bf16" 或 "fp16" 代替 "amp"。'),
            _RULE,
            config.file,
            config.line("amp"),
        )
