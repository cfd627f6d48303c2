"""Observe the steps and logged values of the transformers ``Trainer`` and of its subclasses.

A trainer notifies its callbacks through a handler, whose functions pass their arguments to ``call_event``
(transformers 4.40 to 5.23: ``trainer_callback.py``). The hook reads the arguments from the frame of the
handler's function, which lasts only for the event. It does not read the trainer's frames, because in Python
3.12 and earlier, ``f_locals`` leaves a copy of all local variables on the frame. The copy would keep these
variables alive, even the predictions of a whole evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from ..api import Probe
from ..noticing import notice_method
from .phases import phase_tracker_of

_LOGGED = ("loss", "grad_norm", "learning_rate")


def install(module: Any, probe: Probe) -> None:
    """Watch the class ``CallbackHandler`` of ``transformers.trainer_callback``."""
    watch = TrainerWatch(probe)
    events = [name for name in vars(TrainerWatch) if name.startswith("on_")]
    notice_event(module.CallbackHandler, {name: getattr(watch, name) for name in events}, probe)


def notice_event(
    handler: type, calls: Mapping[str, Callable[[Any, Mapping[str, Any]], None]], probe: Probe
) -> None:
    """Call the functions in `calls` at their events, with the trainer's state and the handler's arguments."""

    def notice(_: Any, frame: FrameType) -> None:
        call = calls.get(frame.f_code.co_name)
        if call is None:
            return  # a frame of other code, or an unused event
        given = frame.f_locals
        state = given.get("state")
        if hasattr(state, "global_step"):
            call(state, given)

    notice_method(handler, "call_event", notice, probe.failed)


class TrainerWatch:
    """Pass a trainer's reports to the probe."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._doing = phase_tracker_of(probe)

    def on_train_begin(self, state: Any, _: Mapping[str, Any]) -> None:
        """Let the trainer count all further steps because it knows the step of a loaded checkpoint."""
        self._probe.reported_by_user = True
        # The trainer's averages omit NaN (`TrainingArguments.logging_nan_inf_filter`, transformers 5.24).
        self._probe.averages_losses = True
        self._probe.steps = float(state.global_step)
        if state.max_steps and state.max_steps > 0:
            self._probe.value("target_steps", state.max_steps)

    def on_step_begin(self, *_: Any) -> None:
        """Handle the first batch of a step."""
        self._doing.train()

    def on_step_end(self, state: Any, _: Mapping[str, Any]) -> None:
        """Record an optimizer step."""
        self._probe.step(state.global_step)

    def on_log(self, _: Any, given: Mapping[str, Any]) -> None:
        """Record the logged values of the last steps. Transformers 5 logs some of the values as text."""
        logs = given.get("logs") or {}
        for name in _LOGGED:
            if name in logs:
                try:
                    # Do not call ``float`` on a tensor, because it would wait for the tensor's device.
                    value = logs[name]
                    self._probe.value(name, float(value) if isinstance(value, str) else value)
                except ValueError:
                    continue

    def on_prediction_step(self, *_: Any) -> None:
        """Handle a batch of an evaluation."""
        self._doing.begin("eval", surely=True)

    def on_train_end(self, *_: Any) -> None:
        """Stop observing this trainer because later steps do not belong to it."""
        self._probe.reported_by_user = self._probe.averages_losses = False
        self._doing.end()
