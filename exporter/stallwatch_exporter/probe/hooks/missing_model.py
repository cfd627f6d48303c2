"""``deepspeed.initialize`` that got no model: noticed just before it fails.

From 0.14 to 0.19 it leaves any ``zero.Init`` context through ``zero.partition_parameters`` first, and then
asserts that there is a model (``deepspeed/__init__.py``).

Locals are read through ``f_locals``, which until Python 3.12 leaves a copy of them on the frame. Of
``initialize`` these are its arguments, which its caller holds as well; frames further out are read only
where it fails at once.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ..api import Probe
from ..noticing import notice_module_attribute
from ..places import place_of
from .warned import warn

RULE = "deepspeed-initialize-model-none"
_MODELS = ("model", "ref_model", "ref_policy", "reward_model", "value_model", "policy_model", "teacher_model")
_MOST_FRAMES = 12


def install(module: Any, probe: Probe) -> None:
    """Watch the package of ``deepspeed.runtime.zero.partition_parameters``."""
    package, _, name = module.__name__.rpartition(".")

    def looked_up(_: Any, frame: FrameType) -> None:
        if frame.f_code.co_name != "initialize":
            return
        given = frame.f_locals
        if "model" in given and given["model"] is None:
            place = place_of(frame.f_back)
            trainer, missing = who_lacks_one(frame.f_back)
            seen = "no-model-of" if missing else "no-model"
            warn(probe, RULE, seen, place, place=place, trainer=trainer, missing=missing)

    notice_module_attribute(sys.modules[package], name, looked_up, probe.failed)


def who_lacks_one(frame: FrameType | None) -> tuple[str, str]:
    """The trainer that is being made, and which of its models are ``None``; nothing where there is none."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        trainer = frame.f_locals.get("self")
        kind = type(trainer).__name__
        if kind.endswith("Trainer"):
            own = vars(trainer)
            return kind, ", ".join(name for name in _MODELS if name in own and own[name] is None)
        frame = frame.f_back
    return "", ""
