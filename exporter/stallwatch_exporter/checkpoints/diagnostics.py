"""Faults of a checkpoint as diagnostics: why they matter, and what to do."""

from __future__ import annotations

from stallwatch_exporter.checkpoints.faults import Fault
from stallwatch_lint.diagnostic import Diagnostic
from stallwatch_rules.messages import Message
from stallwatch_rules.messages import bilingual as Words

_CUT = (
    Words(
        "Loading it will fail: the disk was full, the process was killed while it wrote, or a copy"
        " broke off.",
        "加载时会失败：写入时磁盘满了、进程被杀，或复制中断。",
    ),
    Words("Take an older checkpoint, or copy the file again.", "使用更早的 checkpoint，或重新复制该文件。"),
)
_ABOUT: dict[str, tuple[Message, Message]] = {
    "empty-tensors": (
        Words(
            "ZeRO-3 parameters were saved without being gathered: the file holds placeholders in"
            " place of weights.",
            "ZeRO-3 参数没有 gather 就保存了：文件里是占位符，不是权重。",
        ),
        Words(
            "If there is a ZeRO checkpoint (global_stepN): python zero_to_fp32.py CKPT OUT. Next time:"
            ' "stage3_gather_16bit_weights_on_model_save": true.',
            "若有 ZeRO checkpoint（global_stepN）：python zero_to_fp32.py CKPT OUT。下次设"
            ' "stage3_gather_16bit_weights_on_model_save": true。',
        ),
    ),
    "latest-missing": (
        Words("DeepSpeed resumes from the folder that latest names.", "DeepSpeed 从 latest 指明的目录恢复。"),
        Words("Write the name of a folder that is there into latest.", "把存在的目录名写入 latest。"),
    ),
    "unreadable": (
        Words("What cannot be read here cannot be loaded either.", "这里读不了的文件也无法加载。"),
        Words("Look at the file's owner and mode.", "检查文件的所有者和权限。"),
    ),
}


def diagnostic_of(fault: Fault) -> Diagnostic:
    """What to tell of a fault; its check is named ``checkpoint-…``."""
    why, fix = _ABOUT.get(fault.kind, _CUT)
    return Diagnostic(
        f"checkpoint-{fault.kind}",
        "fails" if fault.fails else "advice",
        Words(fault.what, fault.what_zh),
        why,
        fix,
        fault.rule,
        str(fault.path),
    )
