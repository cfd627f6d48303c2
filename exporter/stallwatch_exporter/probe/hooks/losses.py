"""The loss where a loop calls ``loss.backward()`` itself: all that a step takes gradients of, added up.

With gradient accumulation a loop divides each part by their number, so the sum is the step's loss. Only one
step a second is looked at. A tensor on a device is neither waited for nor added up: of several parts there
the last one stands for all.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ..api import SAMPLE_SECONDS, Probe
from ..devices import is_spread
from ..draft import INDEX, NAN, TIME
from ..noticing import notice_method
from .phases import TRAIN, doing_of

_PHASE, _OWN_SECONDS = INDEX["phase"], INDEX["own_seconds"]


def install(module: Any, probe: Probe) -> None:
    """Watch ``Tensor.backward`` of ``torch._tensor``, and who scales losses in ``torch.amp.grad_scaler``."""
    watch = _watches.setdefault(id(probe), LossWatch(probe))
    if hasattr(module, "GradScaler"):
        notice_method(module.GradScaler, "scale", watch.scales, probe.failed)
    else:
        module.Tensor.backward = NoticedBackward(vars(module.Tensor)["backward"], probe, watch)


class NoticedBackward:
    """Stands for ``Tensor.backward``, as a `NoticedMethod`; it times each, and has few of them looked at."""

    def __init__(self, function: Any, probe: Probe, watch: LossWatch) -> None:
        self.function = function
        self._bind = function.__get__
        self._probe = probe
        self._watch = watch

    def __get__(self, loss: Any, owner: Any = None) -> Any:
        if loss is not None:
            probe = self._probe
            try:
                now = probe.clock()
                row = probe.row
                own = now - row[TIME]
                # No loss, if it has several numbers: its gradient came from another stage of a pipeline.
                row[_OWN_SECONDS] = own if loss.numel() == 1 else NAN
                if row[_PHASE] != TRAIN:
                    row[_OWN_SECONDS] = NAN
                    self._watch.backward(loss, sys._getframe(1), now)
                elif now >= self._watch.look_at or own < 0.0:
                    self._watch.backward(loss, sys._getframe(1), now)
            except Exception:
                probe.failed()
        return self._bind(loss, owner)


class LossWatch:
    """What is noticed of the backward passes of one process."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self.look_at = 0.0  #: until then there is nothing to be looked at while the run trains
        self._doing = doing_of(probe)
        self._scaled = False
        self._step = -1.0  # the step whose parts are added up
        self._parts: list[float] = []
        self._looked_at = float("-inf")

    def backward(self, loss: Any, frame: FrameType, now: float) -> None:
        """``loss.backward`` was looked up, by code at `frame`."""
        probe = self._probe
        self._doing.train()
        if probe.told_by_user or self._scaled:
            self.look_at = now + SAMPLE_SECONDS
            return  # somebody tells the loss who knows it unscaled
        if self._step != probe.steps:
            if 0.0 <= now - self._looked_at < SAMPLE_SECONDS:
                self.look_at = self._looked_at + SAMPLE_SECONDS
                return
            self._looked_at, self._step = now, probe.steps
            self._parts.clear()
        if loss.numel() != 1 or is_spread(loss) or _is_an_engines(frame):
            return
        if loss.device.type == "cpu":
            self._parts.append(float(loss.detach()))
            probe.value("loss", sum(self._parts))
        else:
            probe.value("loss", loss)

    def scales(self, scaler: Any, _: FrameType) -> None:
        """A ``GradScaler`` is used: what is differentiated is the loss times a number on the device."""
        self._scaled = self._scaled or bool(scaler.is_enabled())


def _is_an_engines(frame: FrameType) -> bool:
    """Whether DeepSpeed asks: its engine was told the loss before it scaled it."""
    return str(frame.f_globals.get("__name__", "")).startswith("deepspeed.")


_watches: dict[int, LossWatch] = {}
