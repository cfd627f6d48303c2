"""Modules in evaluation mode that take part in a backward pass of ZeRO-3.

DeepSpeed refused that until 0.15.3 (an assertion in ``runtime/zero/parameter_offload.py``); since 0.15.4 it
says nothing, and the model trains without its dropout. When a backward pass begins, the model is looked
through for modules in evaluation mode, at most once a second and for a thousandth of the time. Only if there
are any, the modules are watched as the backward pass reaches them: a teacher that runs without gradients is
never reached.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..api import Probe
from ..noticing import notice_method, stop_noticing
from ..places import place_of
from .warned import before_backward, warn

RULE = "zero3-backward-in-eval-mode"
LOOK_SECONDS = 1.0
_SHARE = 1000  # at most this part of the time (1/1000) goes into looking
_MOST_WARNINGS = 8
_TRAINS_ON_SINCE = (0, 15, 4)


def install(module: Any, probe: Probe) -> None:
    """Watch ``deepspeed.runtime.zero.parameter_offload``, which runs backward passes module by module."""
    cls, name = module.DeepSpeedZeRoOffload, "pre_sub_module_backward_function"

    def arm(on: bool) -> None:
        if on:
            notice_method(cls, name, watch.reached, probe.failed)
        else:
            stop_noticing(cls, name)

    watch = EvalWatch(probe, arm)
    before_backward.append(watch.begins)


class EvalWatch:
    """What is known of the engines' modules.

    `arm` begins and ends the watching of a backward pass, which is done without while no module is suspect.
    `refused` says whether this DeepSpeed lets such a module pass. Without it, DeepSpeed's version tells; that
    is not known yet while DeepSpeed is being imported.
    """

    def __init__(
        self,
        probe: Probe,
        arm: Callable[[bool], None],
        *,
        refused: bool | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._probe = probe
        self._arm = arm
        self._refused = refused
        self._clock = clock
        self._due: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._trains: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._suspects: dict[Any, str] = {}  # in evaluation mode as this backward pass began, by module
        self._place = ""
        self._armed = False
        self._told = 0

    def begins(self, engine: Any, _: Any, frame: FrameType) -> None:
        """A backward pass of `engine` begins: look at its modules, if it is time."""
        if self._armed:
            self._armed, self._suspects = False, {}
            self._arm(False)
        trains = bool(engine.module.training)
        left = not trains and self._trains.get(engine, True)  # the whole model was left in evaluation mode
        self._trains[engine] = trains
        now = self._clock()
        if self._told >= _MOST_WARNINGS or (now < self._due.get(engine, now) and not left):
            return
        if self._refused is None:
            self._refused = _version() < _TRAINS_ON_SINCE
        self._suspects = in_evaluation(engine.module, strict=self._refused)
        took = self._clock() - now
        self._due[engine] = now + max(LOOK_SECONDS, _SHARE * took)
        if self._suspects:
            self._place = place_of(frame.f_back)
            self._armed = True
            self._arm(True)

    def reached(self, _: Any, frame: FrameType) -> None:
        """The backward pass has come to a module, the caller's ``sub_module``."""
        if not self._suspects:
            return
        module: Any = frame.f_locals.get("sub_module")
        name = self._suspects.get(module)
        if name is None or module.training:
            return
        others, self._suspects = len(self._suspects) - 1, {}
        self._told += 1
        seen = "eval-refused" if self._refused else "eval-silent"
        kind = type(module).__name__
        path = f"{name or '(the model)'} ({kind})"
        warn(self._probe, RULE, seen, name, module=path, others=others, place=self._place)


def in_evaluation(model: Any, *, strict: bool) -> dict[Any, str]:
    """The modules of a model that are in evaluation mode, with their paths.

    Unless `strict`, only those that have parameters to train themselves, and not those with running
    statistics: frozen parts and batch normalisation are kept in evaluation mode on purpose.
    """
    found = {}
    for name, module in model.named_modules():
        if not module.training and (strict or (_trainable(module) and not _keeps_statistics(module))):
            found[module] = name
    return found


def _trainable(module: Any) -> bool:
    parameters = module._parameters.values()
    return any(parameter is not None and parameter.requires_grad for parameter in parameters)


def _keeps_statistics(module: Any) -> bool:
    return module._buffers.get("running_mean") is not None


def _version() -> tuple[int, ...]:
    """DeepSpeed's version as numbers; a very high one where it cannot be read."""
    text = str(getattr(sys.modules.get("deepspeed"), "__version__", ""))
    parts = text.split("+")[0].split(".")[:3]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else (999,)
