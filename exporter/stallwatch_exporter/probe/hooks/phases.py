"""What a rank does besides training: evaluating, saving, loading, sampling, handing weights over, compiling.

Each is told when its function is looked up, just before the call. What ends it is the next sign of training:
a batch (``training_step``), a backward pass, a step. Names that a version does not have are passed over.
Evaluations of any trainer are told by the mode of its model (``model_modes``).

``imports.PHASES`` holds the names.
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

_ANY_FILE = ("torch.serialization", "safetensors.torch")  # what they write before training is no checkpoint
_MOST_FRAMES = 200
_MOST_SAVES = 100  # functions that save
TRAIN = float(layout.PHASES.index("train"))
_EVALUATES = (
    "evaluate",
    "predict",
    "prediction_step",
    "eval_batch",
)  # what is sampled in these is no rollout


def install(module: Any, probe: Probe) -> None:
    """Notice what `module` has of `PHASES`."""
    doing = doing_of(probe)
    for owner, name, phase in PHASES[module.__name__]:
        begin = doing.beginning(phase, name, module.__name__ not in _ANY_FILE)
        if not owner:
            notice_module_attribute(module, name, begin, probe.failed)
        elif hasattr(module, owner):
            notice_method(getattr(module, owner), name, begin, probe.failed)


def watch_compiler(module: Any, probe: Probe) -> None:
    """Notice compilations by torch, which may take minutes in the middle of a run.

    torch 2.4 and newer call back as the first of those that overlap begins, and as the last one ends.
    """
    doing = doing_of(probe)
    module.callback_handler.register_start_callback(quietly(doing.compiling, probe))
    module.callback_handler.register_end_callback(quietly(doing.compiled, probe))


class Doing:
    """What this process does, by what it was seen to begin last."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._begun = False  # the first step is done
        self._evaluating = False  # by a trainer: it goes on until the training does
        self._evaluated = False  # the model is in evaluation mode
        self._within = self._evaluates = ""  # the functions that began the phase and the trainer's evaluation
        self.thread: int | None = None  #: the one that trains; it counts once a step was made
        self._before = "train"  # a compilation
        self._saving = ("", 0.0)  # the program's own function that asked for a save, and when
        self.compare_modes: Callable[[FrameType], None] = lambda _: None  #: takes in changes of models' modes

    def beginning(self, phase: str, name: str, always: bool) -> Callable[[Any, FrameType], None]:
        """What to call when `phase` begins by a call of `name`, in the form of a notice.

        Unless `always`, only after the first step.
        """

        def notice(_: Any, frame: FrameType) -> None:
            if frame.f_globals.get("__package__") == __package__:
                return  # another hook looks at the object
            if phase == "train":
                self.train()
            elif always or self.has_stepped():
                within = frame.f_code.co_name if name.startswith("__") else name
                self.begin(phase, surely=name in _EVALUATES, within=within, frame=frame)

        return notice

    def train(self) -> None:
        """A batch of the training. Until the first step is done this is still the beginning."""
        self._look()
        self._saved()
        self.thread = threading.get_ident()  # here alone: whoever saves after the first step may be another
        self._evaluated = False
        phase = "train" if self._begun else "init"
        if self._evaluating or self._probe.doing != phase:
            self._evaluating = False
            self._probe.phase(phase)

    def begin(
        self, phase: str, *, surely: bool = False, within: str = "", frame: FrameType | None = None
    ) -> None:
        """Something else than training begins, or goes on, `within` a function of that name.

        Checkpoints are also written by threads beside the training, and servers sample in theirs.
        """
        self._look()
        if self._begun and self.thread is not None and threading.get_ident() != self.thread:
            return
        if phase != "save":
            self._saved()
        if phase != self._probe.doing:
            self._within = within
            if phase == "save":
                own = own_frame(frame)
                self._saving = (own.f_code.co_name if own is not None else "", self._probe.clock())
        if phase == "eval":
            if surely and not self._evaluating:
                self._evaluating, self._evaluates = True, within
        elif phase == "rollout" and self._evaluating:
            phase = "eval"
        self._probe.phase(phase)

    def switched(self, training: bool, frame: FrameType) -> None:
        """The model that trains was switched to training or evaluation mode, by code at `frame`.

        Who samples or saves may do that as well: it is still what it was.
        """
        if self._probe.doing not in ("init", "train") and _runs(self._within, frame):
            return
        if training:
            self.train()
        else:
            self.begin("eval")
            self._evaluated = self._probe.doing == "eval"

    def batch(self, frame: FrameType) -> None:
        """A batch is asked for: what was saved is saved, and a trainer's evaluation may be over."""
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

    def _saved(self) -> None:
        """Record how long the save took."""
        function, began = self._saving
        if function:
            self._saving, known = ("", 0.0), self._probe.saves
            if function in known or len(known) < _MOST_SAVES:
                times, longest = known.get(function, (0, 0.0))
                known[function] = times + 1, max(longest, self._probe.clock() - began)

    def has_stepped(self) -> bool:
        """Whether the first step is done."""
        self._look()
        return self._begun

    def end(self) -> None:
        """The training is over, as its trainer says; what comes now is told as it begins."""
        self._evaluating = False
        self._probe.phase("idle")

    def _look(self) -> None:
        if self._probe.doing == "train":  # so a step was made, and ended whatever was before
            self._evaluating = False
            self._begun = True
            self._saving = ("", 0.0)  # nobody saw when it was over

    def compiling(self, *_: Any) -> None:
        """A compilation begins."""
        if self._probe.ends_listening is not None:
            self._probe.ends_listening()
        self._before = self._probe.doing
        if self._before == "train":
            self._probe.phase("init")

    def compiled(self, *_: Any) -> None:
        """It is over."""
        if self._before == "train" and self._probe.doing == "init":
            self._probe.phase("train")


def _runs(name: str, frame: FrameType | None) -> bool:
    """Whether a function of this name is being called by now."""
    for _ in range(_MOST_FRAMES if name else 0):
        if frame is None:
            break
        if frame.f_code.co_name == name:
            return True
        frame = frame.f_back
    return False


_known: dict[int, Doing] = {}


def doing_of(probe: Probe) -> Doing:
    """The one of this probe: all places tell the same."""
    return _known.setdefault(id(probe), Doing(probe))
