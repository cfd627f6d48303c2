"""The loss where a loop calls ``loss.backward()`` itself: all that a step takes gradients of, added up.

With gradient accumulation a loop divides each part by their number, so the sum is the step's loss. Only one
step a second is looked at. A tensor on a device is neither waited for nor added up: of several parts there
the last one stands for all.
"""

from __future__ import annotations

import sys
from types import FrameType, MethodType
from typing import Any

from ..api import SAMPLE_SECONDS, Probe
from ..draft import INDEX, NAN, TIME, is_spread
from ..noticing import notice_method
from .phases import TRAIN, doing_of

_STEP, _PHASE, _OWN_SECONDS = INDEX["step"], INDEX["phase"], INDEX["own_seconds"]


def install(module: Any, probe: Probe) -> None:
    """Watch ``Tensor.backward`` of ``torch._tensor``."""
    module.Tensor.backward = NoticedBackward(vars(module.Tensor)["backward"], probe)


def watch_scaler(module: Any, probe: Probe) -> None:
    """Watch who scales losses in ``torch.amp.grad_scaler``, by a number on the device."""

    def scales(scaler: Any, _: FrameType) -> None:
        if scaler.is_enabled():
            _scaled.add(id(probe))

    notice_method(module.GradScaler, "scale", scales, probe.failed)


class NoticedBackward:
    """Stands for ``Tensor.backward``, as a `NoticedMethod` that looks at the first step of each record.

    How late a rank comes to its backward pass matters only in steps so long that each has a record.
    """

    def __init__(self, function: Any, probe: Probe) -> None:
        self.function = function
        self._probe = probe
        self._doing = doing_of(probe)
        self._step = -1.0  # the step whose parts are added up
        self._parts: list[float] = []
        self._look_at = 0.0  # when the next one is looked at

    def __get__(self, loss: Any, owner: Any = None) -> Any:
        if loss is None:
            return self.function
        try:
            probe = self._probe
            row = probe.row
            if row[_STEP] != row[_STEP]:  # no step since the last record
                now = probe.monotonic() + probe.offset
                trains = row[_PHASE] == TRAIN
                # No loss, if it has several numbers: its gradient came from another stage of a pipeline.
                row[_OWN_SECONDS] = now - row[TIME] if trains and loss.numel() == 1 else NAN
                if not trains or now >= self._look_at or probe.steps == self._step:
                    self._look(loss, sys._getframe(1), now)
        except Exception:
            self._probe.failed()
        return MethodType(self.function, loss)

    def _look(self, loss: Any, frame: FrameType, now: float) -> None:
        probe = self._probe
        self._doing.train()
        if self._step != probe.steps:
            self._step, self._look_at = probe.steps, now + SAMPLE_SECONDS
            self._parts.clear()
        if id(probe) in _scaled or (probe.told_by_user and not probe.averages_losses):
            return  # whoever reports the loss knows it unscaled
        if loss.numel() != 1 or is_spread(loss) or _is_an_engines(frame):
            return
        if loss.device.type == "cpu":
            self._parts.append(float(loss.detach()))
            probe.value("loss", sum(self._parts))
        else:
            probe.value("loss", loss)


def _is_an_engines(frame: FrameType) -> bool:
    """Whether DeepSpeed asks: its engine was told the loss before it scaled it."""
    return str(frame.f_globals.get("__name__", "")).startswith("deepspeed.")


_scaled: set[int] = set()  # probes, by their identity
