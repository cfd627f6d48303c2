"""Detect phases other than training: evaluation, saving, loading, sampling, weight sync, and compilation.

A phase begins when code looks up one of the phase's functions (see ``imports.PHASES``), immediately before
the call. The phase ends at the next sign of training: a batch (``training_step``), a backward pass, or a
step. In addition, the mode of the model reveals evaluations by any trainer (see ``model_modes``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from .. import layout
from ..api import Probe
from ..imports import PHASES
from ..noticing import notice_method, notice_module_attribute
from .reports import own_frame, quietly

_ANY_FILE = ("torch.serialization", "safetensors.torch")  # files written before training are not checkpoints
_MOST_FRAMES = 200
_MOST_SAVES = 100  # maximum number of functions that save
TRAIN = float(layout.PHASES.index("train"))
# Sampling within these functions is not a rollout.
_EVALUATES = ("evaluate", "predict", "prediction_step", "eval_batch")


def install(module: Any, probe: Probe) -> None:
    """Observe the functions in `PHASES` that `module` has."""
    doing = phase_tracker_of(probe)
    for owner, name, phase in PHASES[module.__name__]:
        begin = doing.beginning(phase, name, module.__name__ not in _ANY_FILE)
        if not owner:
            notice_module_attribute(module, name, begin, probe.failed)
        elif hasattr(module, owner):
            notice_method(getattr(module, owner), name, begin, probe.failed)


def watch_compiler(module: Any, probe: Probe) -> None:
    """Observe compilations by torch, which can take minutes in the middle of a run.

    If compilations overlap, torch 2.4 and later report only the start of the first compilation and the end of
    the last compilation.
    """
    doing = phase_tracker_of(probe)
    module.callback_handler.register_start_callback(quietly(doing.compiling, probe))
    module.callback_handler.register_end_callback(quietly(doing.compiled, probe))


class PhaseTracker:
    """Tracker of this process's current phase, which begins with a call to one of the phase's functions."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._begun = False  # whether the first step is done
        self._evaluating = False  # whether a trainer evaluates (reset when its training continues)
        self._evaluated = False  # whether the model is in evaluation mode
        self._within = self._evaluates = ""  # names of the functions that began the phase and the evaluation
        self.thread: int | None = None  #: ID of the training thread, used after the first step
        self._before = "train"  # phase before a compilation
        self._saving = ("", 0.0)  # function of the program that started a save, and the start time
        self.compare_modes: Callable[[FrameType], None] = lambda _: None  #: handles changes of models' modes

    def beginning(self, phase: str, name: str, always: bool) -> Callable[[Any, FrameType], None]:
        """Return a callback that begins `phase` when `name` is called.

        Before the first step, the callback begins only ``train`` or, if `always` is true, another phase.
        """

        def notice(_: Any, frame: FrameType) -> None:
            if frame.f_globals.get("__package__") == __package__:
                return  # another hook of the probe reads the object
            if phase == "train":
                self.train()
            elif always or self.has_stepped():
                within = frame.f_code.co_name if name.startswith("__") else name
                self.begin(phase, surely=name in _EVALUATES, within=within, frame=frame)

        return notice

    def train(self) -> None:
        """Handle a training batch. The phase stays ``init`` until the first step is done."""
        self._notice_step()
        self._end_save()
        # Only training sets the thread, because another thread can save after the first step.
        self.thread = threading.get_ident()
        self._evaluated = False
        phase = "train" if self._begun else "init"
        if self._evaluating or self._probe.doing != phase:
            self._evaluating = False
            self._probe.phase(phase)

    def begin(
        self, phase: str, *, surely: bool = False, within: str = "", frame: FrameType | None = None
    ) -> None:
        """Begin or continue a phase other than training, in a function named `within`."""
        self._notice_step()
        if self._begun and self.thread is not None and threading.get_ident() != self.thread:
            return  # for example, a thread that writes a checkpoint, or a server that samples
        if phase != "save":
            self._end_save()
        if phase != self._probe.doing:
            self._within = within
            if phase == "save":
                caller = own_frame(frame)
                self._saving = (caller.f_code.co_name if caller is not None else "", self._probe.clock())
        if phase == "eval":
            if surely and not self._evaluating:
                self._evaluating, self._evaluates = True, within
        elif phase == "rollout" and self._evaluating:
            phase = "eval"
        self._probe.phase(phase)

    def switched(self, training: bool, frame: FrameType) -> None:
        """Handle a switch of the training model's mode by the code at `frame`."""
        if self._probe.doing not in ("init", "train") and _runs(self._within, frame):
            return  # sampling and saving also switch the mode, but this begins no new phase
        if training:
            self.train()
        else:
            self.begin("eval")
            self._evaluated = self._probe.doing == "eval"

    def batch(self, frame: FrameType) -> None:
        """Handle a request for a batch, which ends a save and can end a trainer's evaluation."""
        self.compare_modes(frame)
        if self.thread is not None and threading.get_ident() != self.thread:
            return
        doing = self._probe.doing
        evaluates = self._evaluating and (not self._evaluates or _runs(self._evaluates, frame))
        if doing == "save" and not _runs(self._within, frame):
            if evaluates or self._evaluated:
                self.begin("eval")
            else:
                self.train()
        elif doing == "eval" and self._evaluating and not evaluates:
            self.train()

    def _end_save(self) -> None:
        """Record the duration of a finished save."""
        function, began = self._saving
        if function:
            self._saving, known = ("", 0.0), self._probe.saves
            if function in known or len(known) < _MOST_SAVES:
                times, longest = known.get(function, (0, 0.0))
                known[function] = times + 1, max(longest, self._probe.clock() - began)

    def has_stepped(self) -> bool:
        """Return whether the first step is done."""
        self._notice_step()
        return self._begun

    def end(self) -> None:
        """Handle a trainer's report that training has ended. Later phases can still begin."""
        self._evaluating = False
        self._probe.phase("idle")

    def _notice_step(self) -> None:
        if self._probe.doing == "train":  # a step ended the previous phase
            self._evaluating = False
            self._begun = True
            self._saving = ("", 0.0)  # the end of the save was not observed

    def compiling(self, *_: Any) -> None:
        """Handle the start of a compilation."""
        if self._probe.stop_counting is not None:
            self._probe.stop_counting()
        self._before = self._probe.doing
        if self._before == "train":
            self._probe.phase("init")

    def compiled(self, *_: Any) -> None:
        """Handle the end of a compilation."""
        if self._before == "train" and self._probe.doing == "init":
            self._probe.phase("train")


def _runs(name: str, frame: FrameType | None) -> bool:
    """Return whether a function with this name is on the stack."""
    for _ in range(_MOST_FRAMES if name else 0):
        if frame is None:
            break
        if frame.f_code.co_name == name:
            return True
        frame = frame.f_back
    return False


_known: dict[int, PhaseTracker] = {}


def phase_tracker_of(probe: Probe) -> PhaseTracker:
    """Return the phase tracker of this probe, which all hooks share."""
    return _known.setdefault(id(probe), PhaseTracker(probe))
