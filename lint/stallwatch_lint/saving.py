"""Whether weights will be saved: ZeRO-3 hands them out only when asked to gather them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stallwatch_lint.diagnostic import Diagnostic, Severity, Words
from stallwatch_lint.dsconfig import DsConfig
from stallwatch_lint.kinds import kinds_of
from stallwatch_lint.script import Call, Script, is_constant

_GATHER = "stage3_gather_16bit_weights_on_model_save"
_KEYS = (_GATHER, "gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save")


def gathers(config: DsConfig) -> bool:
    """Whether the configuration lets ZeRO-3 gather weights; what cannot be told counts as yes."""
    return any(config.get("zero_optimization", key) not in (None, False) for key in _KEYS)


def check_saving(config: DsConfig, scripts: Sequence[Script]) -> Iterator[Diagnostic]:
    """ZeRO-3 without gathering: once for the configuration, or for each place that saves.

    accelerate 1.15.0, ``accelerator.py`` (``get_state_dict``): raises. DeepSpeed 0.19.8,
    ``runtime/engine.py``
    (``save_16bit_model``): writes nothing and returns ``False``. transformers 5.0 (Trainer): catches the
    error and writes a sharded checkpoint.
    """
    if config.stage != 3 or gathers(config):
        return
    places = [one for script in scripts for one in _places(script)]
    yield from places
    if not places:
        yield _diagnostic("advice", None).at(config.file, config.line("zero_optimization", _GATHER))


def _places(script: Script) -> Iterator[Diagnostic]:
    kinds = kinds_of(script)
    for call in script.calls:
        severity: Severity | None = None
        if call.last == "get_state_dict" and kinds.of_owner(call.node) == "accelerator":
            severity = "fails"
        elif call.last in ("save_16bit_model", "save_fp16_model") or (
            call.last == "save_model"
            and kinds.of_owner(call.node) == "trainer"
            and _transformers(script, call)
        ):
            severity = "likely"
        if severity:
            yield _diagnostic(severity, call).at(script.file, call.line)


def _transformers(script: Script, call: Call) -> bool:
    return bool(script.imports & {"transformers", "trl"}) and not is_constant(
        call.argument("_internal_call"), True
    )


def _diagnostic(severity: Severity, call: Call | None) -> Diagnostic:
    what = (
        Words(
            "ZeRO-3 may not gather weights, so none can be saved whole",
            "ZeRO-3 未允许 gather，无法保存完整权重",
        )
        if call is None
        else Words(
            f"{call.name}() asks for weights that ZeRO-3 may not gather",
            f"{call.name}() 需要的权重 ZeRO-3 未获准 gather",
        )
    )
    if severity == "fails":
        why = Words(
            "accelerate raises an error at the save: the training up to there is lost unless there"
            " is a checkpoint.",
            "accelerate 在保存时报错：没有 checkpoint 的话，之前的训练就丢了。",
        )
        rule = "zero3-gather-on-save-disabled"
    else:
        why = Words(
            "The Trainer then writes a sharded ZeRO checkpoint in place of weights,"
            " engine.save_16bit_model nothing,"
            " and accelerator.get_state_dict raises.",
            "这时 Trainer 写出的是切分的 ZeRO checkpoint 而不是权重，engine.save_16bit_model"
            " 什么都不写，accelerator.get_state_dict 会报错。",
        )
        rule = "zero3-weights-not-gathered-notice"
    fix = Words(
        f'Set "{_GATHER}": true in zero_optimization (accelerate: zero3_save_16bit_model: true), or'
        " convert the"
        " checkpoint with zero_to_fp32.py.",
        f'在 zero_optimization 里设 "{_GATHER}": true（accelerate：zero3_save_16bit_model: true），'
        "或用 zero_to_fp32.py 转换 checkpoint。",
    )
    return Diagnostic("gather-on-save", severity, what, why, fix, rule)
