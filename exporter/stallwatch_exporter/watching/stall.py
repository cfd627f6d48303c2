"""Detect stalls. A run stalls if it is quiet for much longer than in any earlier quiet period of the phase.

The module has no side effects. `StallThresholds` learns from every sign of life how long each phase can be
quiet. If the ranks' stacks can be read, a quiet period beyond the learned threshold is only suspicious
(`suspicion`). Stack snapshots then determine how long the quiet period can last (`rule`). Otherwise, only the
thresholds apply, and they allow more time for phases that logs omit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from stallwatch_exporter.settings import ExporterSettings
from stallwatch_rules.progress.threshold import ANNOUNCED, Limits, StallThresholds
from stallwatch_rules.records import Phase
from stallwatch_rules.stacks.quiet_periods import FOREVER, LONG, SHORT, Status

_SEEN = 2  # number of evaluations or saves after which their usual duration is known
_FLOORS: Mapping[Phase, float] = {"init": LONG, "eval": SHORT, "save": LONG, "weight-sync": SHORT}


class StallState(msgspec.Struct, frozen=True):
    """State of the stall watch at one moment."""

    stalled: bool
    phase: Phase
    step: int | None
    since: float  #: time of the last sign of progress
    seconds: float  #: length of the quiet period
    threshold: float
    episode: int  #: number of this stall or the last stall (1 for the first), or 0 if there was no stall
    learning: bool = False  #: true while the threshold is a default, before the run's durations are known
    at_floor: bool = False  #: true if the threshold is the minimum that the settings allow


class Over(msgspec.Struct, frozen=True):
    """Quiet period that ended by itself."""

    seconds: float
    stalled: bool  #: true if the period was reported as a stall


class StallWatch:
    """Learn how long each phase is quiet between two signs of progress, and detect stalls."""

    def __init__(self, settings: ExporterSettings, started: float) -> None:
        self._limits = Limits(
            settings.stall_floor_seconds, settings.stall_start_seconds, settings.stall_factor
        )
        self.learnt = StallThresholds(self._limits)
        self._phase: Phase = "init"
        self._step: int | None = None
        self.last_sign = started  #: time of the last sign of progress
        self._stalled = False
        self._episode = 0
        self._seen: Counter[Phase] = Counter()  # number of finished evaluations, saves, and similar phases
        self._evaluated = False  # true if an evaluation has ended and no step has followed
        self._ruled: tuple[float, Status, float] | None = None  # arguments of `rule` for this quiet period
        self.sighted = False  #: true after stack snapshots have produced a result
        self.spell = 0  #: Number of the quiet period. Each sign of life begins a new period.
        #: True in the phase "idle" if only a counter that reached its total shows the end of the training
        self.only_reached_total = False
        self.over: Over | None = None  #: last quiet period that was evaluated or reported, after it ended

    def observe(self, time: float, phase: Phase, step: int | None = None) -> None:
        """Record a sign of progress, such as a step, a batch of an evaluation, or a new phase.

        The wait before the sign belongs to the run's previous phase, even if the sign begins a new phase.
        """
        waited = time - self.last_sign
        if self._ruled is not None or self._stalled:
            self.over = Over(max(0.0, waited), self._stalled)
        self.spell += 1
        _, status, usual = self._ruled or (0.0, "alive", math.inf)
        self.learnt.observe(
            waited,
            self._phase,
            phase,
            stalled=self._stalled,
            after_evaluation=self._evaluated and self._phase == phase == "train" and not self.learnt.log_only,
            # Do not learn the duration of steps from a wait that has a different known reason.
            learn=status != "paused" and (self._phase != "train" or waited <= usual),
        )
        if phase != self._phase and self._phase in ANNOUNCED:
            self._seen[self._phase] += 1
        self._evaluated = phase == "train" and (
            self._phase == "eval" or (self._evaluated and step in (None, self._step))
        )
        self._ruled = None
        self.last_sign = time
        self._stalled = False
        self._phase = phase
        if step is not None:
            self.learnt.step_by(max(1, step - self._step) if self._step is not None else 1)
            self._step = step

    def check(self, now: float, *, begin: bool = True) -> StallState:
        """Return the state at `now`. If `begin` is True, a quiet time beyond the threshold begins a stall."""
        quiet = max(0.0, now - self.last_sign)
        threshold = self._ruled[0] if self._ruled is not None else self.learnt.alone[self._phase]
        if begin and quiet > threshold and not self._stalled:
            self._stalled = True
            self._episode += 1
        learning = self._ruled is None and self.learnt.learning(self._phase)
        return StallState(
            self._stalled,
            self._phase,
            self._step,
            self.last_sign,
            quiet,
            threshold,
            self._episode,
            learning,
            at_floor=threshold <= self._limits.floor,
        )

    def rule(self, limit: float, status: Status, *, usual: float = math.inf) -> None:
        """Set the limit, in seconds, of the current quiet period. The next sign of life removes this limit.

        If the period lasts longer than `usual` seconds, the duration of steps is not learned from it.
        """
        self._ruled = (limit, status, usual)

    @property
    def suspicion(self) -> float:
        """Seconds without a sign of life after which the current phase is suspected to be stalled."""
        if self.rhythm_known and self._phase == "train":
            return self.learnt.suspected
        waits, (floor, start, factor) = self.learnt.of(self._phase), self._limits
        return max(floor, factor * waits.longest, waits.survived(start))

    @property
    def rhythm_known(self) -> bool:
        """Return whether enough steps have been observed to know how long a step takes."""
        return self.learnt.steps_known

    @property
    def known_quiet(self) -> float | None:
        """Longest quiet time in this phase that ended by itself, or ``None`` if the phase was rarely seen."""
        phase: Phase = "eval" if self._evaluated else self._phase
        return self.learnt.of(phase).longest if self._seen[phase] >= _SEEN else None

    def pause(self, seconds: float) -> None:
        """Exclude the seconds for which the watch was suspended (by Control+Z or with the whole machine)."""
        self.last_sign += seconds

    def take_over(self, durations: Mapping[Phase, Sequence[float]], last_sign: float) -> None:
        """Take over a run that is already running.

        `durations` contains the waits in the run's log by phase. `last_sign` is the time of the run's last
        sign of life.
        """
        self.learnt.take_over(durations)
        self.last_sign = last_sign
        self._stalled = False

    @property
    def longest(self) -> float:
        """Longest recent quiet time of this phase, in seconds, excluding stalls."""
        return self.learnt.of(self._phase).longest

    @property
    def thresholds(self) -> dict[Phase, float]:
        """Seconds without a sign of life, by observed phase, after which a stall is usually reported."""
        found = {phase: self._usually(phase, alone) for phase, alone in self.learnt.alone.items()}
        if self._ruled is not None and self._ruled[0] < FOREVER:
            found[self._phase] = self._ruled[0]
        return found

    def _usually(self, phase: Phase, alone: float) -> float:
        if not self.sighted:
            return alone
        floor, _, factor = self._limits
        if phase == "train":
            suspected = self.learnt.suspected
            return suspected if self.rhythm_known else max(LONG * floor, suspected)
        if phase not in _FLOORS:
            return alone
        learnt = max(floor, factor * self.learnt.of(phase).longest)
        known = phase == "eval" and self._seen[phase] >= _SEEN
        return learnt if known else max(_FLOORS[phase] * floor, learnt)
