"""When a plain training loop calls ``loss.backward()``, record the loss and how many tokens it covers.

With gradient accumulation, a training loop divides each part of the loss by the number of parts. Therefore,
the sum of the parts is the loss of the step. The probe records the loss of only one step per second. It
does not add up parts that are on a device, because it would have to wait for the device. Instead, it
records the last part. The number of tokens comes from shapes in the graph of the loss.
"""

from __future__ import annotations

import math
import sys
from types import FrameType, MethodType
from typing import Any

from ..api import SAMPLE_SECONDS, Probe
from ..draft import INDEX, NAN, TIME, is_spread
from ..noticing import notice_method
from .phases import TRAIN, phase_tracker_of

_STEP, _PHASE, _OWN_SECONDS, _TOKENS = (INDEX[name] for name in ("step", "phase", "own_seconds", "tokens"))
_MOST_NODES = 24  # maximum number of graph nodes that are searched
# Graph nodes that pick the value of each token's label, or that precede such a node. They occur in
# ``cross_entropy`` (torch 2.1 to 2.13) and in the log-probabilities of TRL and verl.
_OF_TOKENS = ("LogSoftmaxBackward", "GatherBackward")


def install(module: Any, probe: Probe) -> None:
    """Watch ``Tensor.backward`` of ``torch._tensor``."""
    module.Tensor.backward = NoticedBackward(vars(module.Tensor)["backward"], probe)


def watch_scaler(module: Any, probe: Probe) -> None:
    """Watch ``torch.amp.grad_scaler``, which multiplies losses by a number on the device."""

    def scales(scaler: Any, _: FrameType) -> None:
        if scaler.is_enabled():
            _scaled.add(id(probe))

    notice_method(module.GradScaler, "scale", scales, probe.failed)


class NoticedBackward:
    """Descriptor that replaces ``Tensor.backward`` and examines the first step of each record."""

    def __init__(self, function: Any, probe: Probe) -> None:
        self.function = function
        self._probe = probe
        self._doing = phase_tracker_of(probe)
        self._step = -1.0  # step for which the parts of the loss are added up
        self._counted = -1.0  # step for which the tokens are added up
        self._parts: list[float] = []
        self._look_at = 0.0  # earliest time at which the next step is examined

    def __get__(self, loss: Any, owner: Any = None) -> Any:
        if loss is None:
            return self.function
        try:
            probe = self._probe
            row = probe.row
            if row[_STEP] != row[_STEP]:  # no step since the last record
                now = probe.monotonic() + probe.offset
                trains = row[_PHASE] == TRAIN
                # A tensor with several elements gets its gradient from another stage of a pipeline.
                if trains and loss.numel() == 1:
                    row[_OWN_SECONDS] = now - row[TIME]
                    before = row[_TOKENS] if self._counted == probe.steps else 0.0
                    self._counted, row[_TOKENS] = probe.steps, before + tokens_of(loss)
                else:
                    row[_OWN_SECONDS] = NAN
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
        if id(probe) in _scaled or (probe.reported_by_user and not probe.averages_losses):
            return  # other code reports the unscaled loss
        if loss.numel() != 1 or is_spread(loss) or _is_an_engines(frame):
            return
        if loss.device.type == "cpu":
            self._parts.append(float(loss.detach()))
            probe.value("loss", sum(self._parts))
        else:
            probe.value("loss", loss)


def tokens_of(loss: Any) -> float:
    """Return how many tokens, including padding, a loss covers, or NaN if the graph does not show this."""
    nodes = [getattr(loss, "grad_fn", None)]
    for node in nodes:  # the list grows during the loop
        if type(node).__name__.startswith(_OF_TOKENS):
            about = getattr(node, "_input_metadata", None)  # metadata of the function's result (torch 2.1)
            return float(math.prod(about[0].shape[:-1])) if about else NAN
        if node is not None and len(nodes) < _MOST_NODES:
            nodes += [each for each, _ in node.next_functions]
    return NAN


def _is_an_engines(frame: FrameType) -> bool:
    """Return whether DeepSpeed calls ``backward``. If so, its engine received the loss before scaling it."""
    return str(frame.f_globals.get("__name__", "")).startswith("deepspeed.")


_scaled: set[int] = set()  # IDs of the probes with scaled losses
