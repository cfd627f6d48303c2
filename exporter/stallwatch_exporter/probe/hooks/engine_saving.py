"""Weights that are asked for and will not be handed out, told as they are asked for.

``save_16bit_model`` returns ``False`` where ZeRO-3 does not gather, and says so at a level that nobody sees;
accelerate asks whatever model it is given what only an engine can answer.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from ..api import Probe
from ..noticing import notice_method
from ..places import place_of
from .warned import warn

UNWRAPPED = "zero3-save-unwrapped-model"
NOT_GATHERED = "zero3-weights-not-gathered-notice"
_GATHERS = "zero_gather_16bit_weights_on_model_save"


def install(module: Any, probe: Probe) -> None:
    """Watch ``deepspeed.runtime.engine`` or ``accelerate.accelerator``, whichever it is."""
    if hasattr(module, "DeepSpeedEngine"):
        notice_method(module.DeepSpeedEngine, _GATHERS, lambda *seen: _asked(probe, *seen), probe.failed)
    else:
        notice_method(
            module.Accelerator, "distributed_type", lambda *seen: _prepares(probe, *seen), probe.failed
        )


def _asked(probe: Probe, engine: Any, frame: FrameType) -> None:
    if frame.f_code.co_name != "save_16bit_model":
        return
    if not engine._config.zero_config.gather_16bit_weights_on_model_save:
        folder = str(frame.f_locals.get("save_dir", ""))
        place = place_of(frame.f_back)
        warn(probe, NOT_GATHERED, "nothing-saved", place, folder=folder, place=place)


def _prepares(probe: Probe, accelerator: Any, frame: FrameType) -> None:
    """`accelerator` is asked for its kind, in ``get_state_dict`` before anything else."""
    if frame.f_code.co_name != "get_state_dict":
        return
    model = frame.f_locals.get("model")
    settings = getattr(accelerator, "deepspeed_config", None)
    if model is None or not settings or settings.get("zero_optimization", {}).get("stage") != 3:
        return
    if not hasattr(model, _GATHERS):
        place = place_of(frame.f_back)
        warn(probe, UNWRAPPED, "unwrapped-now", place, model=type(model).__name__, place=place)
