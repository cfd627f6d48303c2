"""Whether weights will be saved: ZeRO-3 hands them out only when asked to gather them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stallwatch_lint.diagnostic import Diagnostic, diagnostic
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
        yield diagnostic("gather-on-save", config.at("zero_optimization", _GATHER))


def _places(script: Script) -> Iterator[Diagnostic]:
    kinds = kinds_of(script)
    for call in script.calls:
        kind = ""
        if call.last == "get_state_dict" and kinds.of_owner(call.node) == "accelerator":
            kind = "gather-on-save-raises"
        elif call.last in ("save_16bit_model", "save_fp16_model") or (
            call.last == "save_model"
            and kinds.of_owner(call.node) == "trainer"
            and _transformers(script, call)
        ):
            kind = "gather-on-save-call"
        if kind:
            yield diagnostic(kind, script.at(call), call=call.name)


def _transformers(script: Script, call: Call) -> bool:
    return bool(script.imports & {"transformers", "trl"}) and not is_constant(
        call.argument("_internal_call"), True
    )
