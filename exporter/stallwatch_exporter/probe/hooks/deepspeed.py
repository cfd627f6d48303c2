"""Observe the DeepSpeed engine: steps, loss, gradient norm, learning rate, loss scale, and skipped steps.

All versions of the engine count their optimizer steps in ``global_steps``, so a step is done when that
number increases by one. The loss is the argument of ``backward``. The probe reads the loss when
``backward`` calls a certain method at its start. The name of that method differs between versions.
"""

from __future__ import annotations

import weakref
from types import FrameType
from typing import Any

from ..api import Probe
from ..noticing import notice_attribute, notice_method
from .leader import Leader
from .reports import before_backward, report_versions

# DeepSpeed 0.14 to 0.16 calls the first of these methods and then the third. Version 0.17 calls the third
# method from within the second. Later versions can call the third method first.
_CALLED_IN_BACKWARD = (
    "gradient_accumulation_steps",
    "_backward_prologue",
    "managed_gradient_accumulation",
    "is_gradient_accumulation_boundary",
)
_NO_TRAINING = ("DummyOptim", "DeepSpeedZeRoOffload")  # classes that replace a missing optimizer

_engines: weakref.WeakSet[Any] = weakref.WeakSet()


def install(module: Any, probe: Probe, engine: Any = None) -> None:
    """Watch the engine class of ``deepspeed.runtime.engine``. `engine` is an existing engine."""
    watch = EngineWatch(probe)
    if engine is not None:
        watch.counted(engine, engine.global_steps)
    cls = module.DeepSpeedEngine
    notice_attribute(cls, "global_steps", probe.failed, was_set=watch.counted)
    for name in _CALLED_IN_BACKWARD:
        notice_method(cls, name, watch.method_called, probe.failed)


def engines() -> list[Any]:
    """Return the engines of this process."""
    return list(_engines)


def trains() -> bool:
    """Return whether an engine that has an optimizer counts the steps instead of the optimizer's hook."""
    return any(
        optimizer is not None and type(optimizer).__name__ not in _NO_TRAINING
        for optimizer in (engine.__dict__.get("optimizer") for engine in _engines)
    )


class EngineWatch:
    """Observer of the engines in a process."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._leader = Leader()
        self._reported = False
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._backward: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def counted(self, engine: Any, steps: int) -> None:
        """Handle a new value of ``global_steps``, which increases by one only after a step.

        The value is 0 at first. After a checkpoint is loaded, it can be any number.
        """
        before = self._steps.get(engine)
        self._steps[engine] = steps
        _engines.add(engine)
        is_step = before is not None and steps == before + 1
        if not is_step or not self._leader.steps(engine, self._probe.steps):
            return
        if not self._reported:
            self._reported = True
            report_versions(self._probe)
        if self._probe.reported_by_user:
            for name, value in _numbers(engine).items():
                if value is not None:
                    self._probe.value(name, value)
        else:
            self._probe.step(steps, **_numbers(engine))

    def method_called(self, engine: Any, frame: FrameType) -> None:
        """Handle a method call. The first call in each ``backward`` records the loss."""
        if frame.f_code.co_name != "backward":
            return
        micro = getattr(engine, "micro_steps", None)
        if self._backward.get(engine) == micro:
            return
        self._backward[engine] = micro
        loss = frame.f_locals.get("loss")
        if loss is not None and self._leader.is_leader(engine):
            self._probe.value("loss", loss)
        for look in before_backward:
            look(engine, loss, frame)


def _numbers(engine: Any) -> dict[str, Any]:
    values = engine.__dict__
    optimizer = values.get("optimizer")
    found = {"skipped_steps": values.get("skipped_steps"), "grad_norm": values.get("_global_grad_norm")}
    groups = getattr(optimizer, "param_groups", None)
    if groups:
        found["learning_rate"] = groups[0].get("lr")
    for holder in (optimizer, getattr(optimizer, "loss_scaler", None)):
        scale = getattr(holder, "cur_scale", None)
        if isinstance(scale, (int, float)):
            found["loss_scale"] = scale
            break
    return found
