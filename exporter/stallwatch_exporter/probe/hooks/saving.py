"""When training begins or code requests the weights, warn if the weights cannot be saved.

Without this warning, two faults would appear only at the first checkpoint, hours later. In the first case,
the ``save_model`` method of a trainer replaces the engine with a bare model (PPO trainers in TRL 0.11 to
1.12). Then accelerate calls a method of the model that only an engine has. In the second case, ZeRO-3 is not
configured to gather weights, so ``save_16bit_model`` returns ``False`` and logs the reason at a level that is
not shown.
"""

from __future__ import annotations

import inspect
import weakref
from types import CodeType, FrameType
from typing import Any

from ..api import Probe
from ..noticing import notice_attribute, notice_method
from .reports import is_own, place_of, report_versions, warn

UNWRAPPED = "zero3-save-unwrapped-model"
NOT_GATHERED = "zero3-weights-not-gathered-notice"
_HANDLER = "callback_handler"
_GATHERS = "zero_gather_16bit_weights_on_model_save"


def watch_engine(module: Any, probe: Probe) -> None:
    """Watch ``save_16bit_model`` of ``deepspeed.runtime.engine``, which checks whether to gather weights."""

    def method_called(engine: Any, frame: FrameType) -> None:
        if frame.f_code.co_name != "save_16bit_model":
            return
        if not engine._config.zero_config.gather_16bit_weights_on_model_save:
            folder = str(frame.f_locals.get("save_dir", ""))
            place = place_of(frame.f_back)
            warn(probe, NOT_GATHERED, "nothing-saved", place, folder=folder, place=place)

    notice_method(module.DeepSpeedEngine, _GATHERS, method_called, probe.failed)


def watch_accelerator(module: Any, probe: Probe) -> None:
    """Watch ``get_state_dict`` of accelerate, which first reads the accelerator's distributed type."""

    def prepares(accelerator: Any, frame: FrameType) -> None:
        if frame.f_code.co_name != "get_state_dict":
            return
        model = frame.f_locals.get("model")
        settings = getattr(accelerator, "deepspeed_config", None)
        if model is None or not settings or settings.get("zero_optimization", {}).get("stage") != 3:
            return
        if not hasattr(model, _GATHERS):
            place = place_of(frame.f_back)
            warn(probe, UNWRAPPED, "unwrapped-now", place, model=type(model).__name__, place=place)

    notice_method(module.Accelerator, "distributed_type", prepares, probe.failed)


def watch_trainer(module: Any, probe: Probe) -> None:
    """Detect when a trainer of ``transformers.trainer`` looks up its callback handler and begins training."""
    last: list[weakref.ref[Any]] = []  # trainer that last looked up its handler

    def looked_up(trainer: Any, _: FrameType) -> None:
        if not last or last[0]() is not trainer:
            last[:] = [weakref.ref(trainer)]

    def begins(handler: Any, _: FrameType) -> None:
        trainer = last[0]() if last else None
        if trainer is not None and vars(trainer).get(_HANDLER) is handler:
            report_versions(probe)
            introduce(trainer, probe)
            look(trainer, probe)

    # Do not read ``self`` in the caller's frame, because that frame lasts for the whole training (see
    # ``transformers``).
    notice_attribute(module.Trainer, _HANDLER, probe.failed, looked_up=looked_up)
    notice_method(module.CallbackHandler, "on_train_begin", begins, probe.failed)


def introduce(trainer: Any, probe: Probe) -> None:
    """Report the trainer's classes and settings because some versions work only with some trainers."""
    classes = [each.__name__ for each in type(trainer).__mro__][:10]
    engine = engine_of(trainer)
    accumulation = getattr(trainer.args, "gradient_accumulation_steps", None)
    stage = engine.zero_optimization_stage() if engine is not None else None
    probe.event("trainer", ",".join(classes), classes=classes, stage=stage, accumulation=accumulation)


def look(trainer: Any, probe: Probe) -> None:
    """Warn about failures that occur if `trainer` saves the model."""
    engine = engine_of(trainer)
    if engine is None or engine.zero_optimization_stage() != 3:
        return
    name = type(trainer).__name__
    saves = str(getattr(trainer.args.save_strategy, "value", trainer.args.save_strategy))
    swaps = swaps_engine(trainer.save_model)
    if swaps is not None:
        path = swaps.co_filename if is_own(swaps.co_filename) else _within(swaps.co_filename)
        place = f"{path}:{swaps.co_firstlineno}"
        seen = "unwrapped-later" if saves == "no" else "unwrapped-at-checkpoint"
        warn(probe, UNWRAPPED, seen, name, trainer=name, place=place, **_first_save(trainer, saves))
    elif saves != "no" and not getattr(engine, _GATHERS)() and not _gathers_adapters(trainer):
        warn(probe, NOT_GATHERED, "not-gathered", name, trainer=name, **_first_save(trainer, saves))


def engine_of(trainer: Any) -> Any:
    """Return a trainer's engine. The PPO trainers of TRL set ``deepspeed`` only after training has begun."""
    for name in ("deepspeed", "model_wrapped", "model"):
        engine = getattr(trainer, name, None)
        if hasattr(engine, _GATHERS) and hasattr(engine, "zero_optimization_stage"):
            return engine
    return None


def swaps_engine(save_model: Any) -> CodeType | None:
    """Return the code of a ``save_model`` that sets ``self.model`` and ``self.deepspeed``, or ``None``."""
    function = inspect.unwrap(getattr(save_model, "__func__", save_model))
    code = getattr(function, "__code__", None)
    if code is None or not {"save_model", "deepspeed", "model"} <= {*code.co_names}:
        return None
    import dis  # part of the standard library, and already imported by torch

    stored = {each.argval for each in dis.get_instructions(code) if each.opname == "STORE_ATTR"}
    return code if {"deepspeed", "model"} <= stored else None


def _gathers_adapters(trainer: Any) -> bool:
    """Return whether adapters are gathered regardless of the configuration, as in transformers 5."""
    code = getattr(getattr(trainer.save_model, "__func__", None), "__code__", None)
    return hasattr(trainer.model, "peft_config") and "_zero3_consolidated_16bit_state_dict" in getattr(
        code, "co_names", ()
    )


def _first_save(trainer: Any, saves: str) -> dict[str, str | int]:
    """Return when the first checkpoint is due according to the trainer's arguments."""
    steps = getattr(trainer.args, "save_steps", None)
    return {"saves": f"step {int(steps)}" if saves == "steps" and steps and steps >= 1 else saves}


def _within(path: str) -> str:
    """Return the path of a library's file, relative to the folder that contains its package."""
    for part in ("site-packages", "dist-packages"):
        path = path.rpartition(f"{part}/")[2]
    return path
