"""From what the reader knows of a run's progress to the stall watch and the metrics."""

from __future__ import annotations

import msgspec

from stallwatch_exporter.incident import Ending
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.watching.hookedprogress import HookedProgress
from stallwatch_exporter.watching.stall import StallWatch
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Phase

_SIGN_SECONDS = 1.0  #: signs of life that are closer to the last one say nothing new
_AT_HAND = 2  #: steps that a run may still finish after it was asked to end


class Advance:
    """Call `seen` after every batch of lines, with the time they came."""

    def __init__(self, tracker: ProgressTracker, watch: StallWatch, metrics: RunMetrics) -> None:
        self._tracker = tracker
        self._watch = watch
        self._metrics = metrics
        self._shown: tuple[object, ...] = (None, None, 1)  # what told of progress until now
        self._attempt = 1
        self._step: int | None = None
        self._step_at: float | None = None  # None where the time before the next step is not a step's alone
        self._ranks: dict[int | None, int] = {}
        self._phase: Phase = "init"
        self._told_to_end: tuple[int, int] | None = None  # the attempt and its step, when it was told so
        self._quiet = 0.0  # seconds without progress then

    @property
    def phase(self) -> Phase:
        """What the run is doing."""
        return self._phase

    def seen(self, now: float) -> bool:
        """Take over what changed; whether there was progress."""
        tracker = self._tracker
        phase: Phase = "idle" if tracker.finished or self._leaving else tracker.phase
        self._watch.log_only = not (isinstance(tracker, HookedProgress) and tracker.hooked_ranks)
        shown = (tracker.last_progress_time, tracker.last_step, tracker.attempt)
        progressed = shown != self._shown
        self._stay_alive(phase)
        if not progressed and phase == self._phase:
            return False
        advanced = phase != self._phase or shown[1:] != self._shown[1:]
        self._shown = shown
        # Several ranks tell of the same step, each at its own moment: only the first is one of the run.
        if advanced or phase != "train" or tracker.last_step is None:
            self._watch.observe(now, phase, tracker.last_step)
        if phase != "train":
            self._step_at = None
        if progressed:
            self._steps(now, phase)
        if phase != self._phase:
            if self._phase == "save":
                self._metrics.milestones.saved(now)
            self._metrics.phase(phase)
            self._phase = phase
        return progressed

    def _stay_alive(self, phase: Phase) -> None:
        """Hand the stall watch the signs of life that are neither steps nor phases."""
        active = self._tracker.active_at if isinstance(self._tracker, HookedProgress) else 0.0
        if phase == self._phase and active - self._watch.last_sign >= _SIGN_SECONDS:
            self._watch.observe(active, phase)

    def told_to_end(self, now: float) -> None:
        """The command was asked to end, by Ctrl-C or a signal: it may be silent for long while it saves.

        That is no stall, as after its last step, unless it stood before. Once it trains on, it is watched as
        before.
        """
        state = self._watch.check(now, begin=False)
        if self._told_to_end is None and not state.stalled:
            self._told_to_end = self._tracker.attempt, self._tracker.last_step or 0
            self._quiet = state.seconds
            self.seen(now)

    def judged(self, ending: Ending) -> Ending:
        """How the command ended: what it did after somebody had asked it to end is no wait of the run's."""
        if ending.kind == "interrupted" and self._leaving:
            return msgspec.structs.replace(ending, quiet=self._quiet)
        return ending

    @property
    def _leaving(self) -> bool:
        tracker = self._tracker
        if self._told_to_end is None or tracker.phase not in ("init", "train"):
            return False
        attempt, step = self._told_to_end
        return tracker.attempt == attempt and (tracker.last_step or 0) <= step + _AT_HAND

    def history(self, last_sign: float) -> None:
        """Take over a run that was up before us; `last_sign` is when its files were last written to."""
        tracker = self._tracker
        self.seen(last_sign)
        self._step_at = None
        phases: tuple[Phase, ...] = ("train", "eval", "save", "rollout", "weight-sync")
        known = {phase: tracker.durations(phase) for phase in phases}
        self._watch.take_over({phase: found for phase, found in known.items() if found}, last_sign)

    def _steps(self, now: float, phase: Phase) -> None:
        tracker = self._tracker
        step = tracker.last_step
        if tracker.attempt != self._attempt:
            self._attempt, self._step_at = tracker.attempt, None
        if step != self._step:
            # The records of a rank's first second come after the log's lines on the same steps.
            repeated = isinstance(tracker, HookedProgress) and tracker.repeats
            self._metrics.progress(step, tracker.total_steps, counted=repeated)
            before, self._step = self._step, step
            made = 0 if step is None or before is None or repeated else step - before
            if made > 0 and self._step_at is not None:
                self._metrics.step_took((now - self._step_at) / made, made)
            self._step_at = now if phase == "train" else None
        ranks = tracker.steps
        for rank, at in ranks.items():
            if self._ranks.get(rank) != at:
                self._metrics.stepped(rank, now)
        self._ranks = ranks
