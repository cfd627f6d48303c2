"""Detect evaluation in any trainer by observing when the trained model switches its mode.

``Module.eval`` and ``Module.train`` call ``train`` of each inner module, which can result in a thousand
calls per switch. Therefore, the probe observes lookups of ``train`` only up to a maximum number. After
that, it looks for changes in the modes of known models when an epoch begins, and at each batch in a phase
other than training.

Only switches of a model that an optimizer trains are counted. A reference model, a reward model, a copy that
averages the weights, or a part that stays in evaluation mode, such as batch normalization, does not count.
"""

from __future__ import annotations

import weakref
from types import FrameType
from typing import Any

from ..api import Probe
from ..draft import INDEX
from ..noticing import notice_method, stop_noticing
from .leader import optimizers
from .phases import phase_tracker_of

_MOST_MODELS = 64
# Maximum number of observed lookups for submodules. These lookups take some milliseconds in total.
_MOST_WITHIN = 20_000
_SWITCHES = INDEX["switches"]
# Names of the arguments by method. A method that overrides one of these methods has the same arguments.
_OVERRIDES = {"train": ("self", "mode"), "eval": ("self",)}


def install(module: Any, probe: Probe) -> None:
    """Watch ``Module`` of ``torch.nn.modules.module``."""
    watch = ModeWatch(probe, module.Module)
    phase_tracker_of(probe).compare_modes = watch.compare
    notice_method(module.Module, "eval", watch.eval_looked_up, probe.failed)
    notice_method(module.Module, "train", watch.train_looked_up, probe.failed)


class _Model:
    """A module that was switched to a different mode together with its inner modules."""

    def __init__(self, module: Any) -> None:
        self.module = weakref.ref(module)
        self.training: bool = module.training
        self.evaluated = False  # whether the switch to evaluation mode was counted


class ModeWatch:
    """Observer of the modes of the models in this process."""

    def __init__(self, probe: Probe, cls: Any) -> None:
        self._probe = probe
        self._doing = phase_tracker_of(probe)
        self._cls = cls
        self._train_code, self._eval_code = cls.train.__code__, cls.eval.__code__
        self._models: list[_Model] = []
        self._switching = False  # whether ``train`` was looked up, but its argument is still unknown
        self._within = 0

    def eval_looked_up(self, module: Any, frame: FrameType) -> None:
        """Handle the upcoming call to ``module.eval`` by the code at `frame`."""
        if self._is_outermost(module, frame):
            self._switched(self._model(module), False, frame)

    def train_looked_up(self, module: Any, frame: FrameType) -> None:
        """Handle the upcoming call to ``module.train``. Its argument is unknown, so check the mode later."""
        if frame.f_code is self._train_code:
            self._within += 1
            if self._within >= _MOST_WITHIN:
                stop_noticing(self._cls, "train")
            if self._switching:  # the outer module already has its new mode
                self.compare(frame)
        elif frame.f_code is not self._eval_code and self._is_outermost(module, frame):
            self._model(module)
            self._switching = True

    def compare(self, frame: FrameType) -> None:
        """Handle the models whose mode has changed since the last comparison."""
        self._switching = False
        for model in self._models:
            module = model.module()
            if module is not None and module.training is not model.training:
                self._switched(model, module.training, frame)

    def _switched(self, model: _Model, training: bool, frame: FrameType) -> None:
        if model.training is training:
            return
        model.training = training
        if not training:
            model.evaluated = self._doing.has_stepped() and self._trains(model.module())
        elif not model.evaluated:
            return
        if model.evaluated:
            row = self._probe.row
            row[_SWITCHES] = row[_SWITCHES] + 1.0 if row[_SWITCHES] == row[_SWITCHES] else 1.0
            self._doing.switched(training, frame)
        model.evaluated = model.evaluated and not training

    def _model(self, module: Any) -> _Model:
        for model in self._models:
            if model.module() is module:
                return model
        self._models = [model for model in self._models if model.module() is not None]
        del self._models[: len(self._models) + 1 - _MOST_MODELS]
        self._models.append(_Model(module))
        return self._models[-1]

    def _trains(self, module: Any) -> bool:
        parameters = _trainable(module)
        if not parameters:
            return False
        trained = {
            id(parameter)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        known = (model.module() for model in self._models)
        others = [other for other in known if other is not None and other is not module]
        # Optimizers can hold copies of the parameters that do not belong to any model.
        if not parameters & trained and any(_trainable(other) & trained for other in others):
            return False
        whole = (
            other for other in others if other.training and any(part is module for part in other.modules())
        )
        return all(len(parameters) * 2 >= len(_trainable(other)) for other in whole)

    def _is_outermost(self, module: Any, frame: FrameType | None) -> bool:
        """Return whether this module's mode is switched on its own, not as part of an outer module."""
        while frame is not None and frame.f_code is not self._train_code:
            code = frame.f_code
            if _OVERRIDES.get(code.co_name) != code.co_varnames[: code.co_argcount]:
                return True
            if frame.f_code is not self._eval_code:
                around = frame.f_locals.get("self")  # frame of a function that is about to end
                if around is not module:
                    return not isinstance(around, self._cls)
            frame = frame.f_back
        return frame is None


def _trainable(module: Any) -> set[int]:
    return {id(each) for each in module.parameters() if each.requires_grad}
