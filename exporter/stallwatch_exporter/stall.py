"""When is a run stuck? When it is quiet for longer than this phase of this run ever was, and then some.

A pure clockwork: it is told of every sign of progress, and knows the threshold of each phase when asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stallwatch_exporter.settings import ExporterSettings
from stallwatch_rules.progress import stall_threshold
from stallwatch_rules.records import Phase

_REMEMBERED = 1000  # durations kept per phase: a run whose rhythm changes is learnt anew
_PART_OF_THE_RHYTHM = 3  # a pause that ended by itself this often is no stall of this run any more


@dataclass(frozen=True)
class StallState:
    """What the watch knows at one moment."""

    stalled: bool
    phase: Phase
    step: int | None
    since: float  #: time of the last sign of progress
    seconds: float  #: quiet for so long
    threshold: float
    episode: int  #: 1, 2, … of this stall, or of the last one; 0 before the first


class StallWatch:
    """Learns how long each phase is quiet between two signs of progress."""

    def __init__(self, settings: ExporterSettings, started: float) -> None:
        self._settings = settings
        self._phase: Phase = "init"
        self._step: int | None = None
        self._last = started
        self._stalled = False
        self._episode = 0
        self._durations: dict[Phase, deque[float]] = {}
        self._pauses: dict[Phase, list[float]] = {}  # stalls that ended by themselves
        self._thresholds: dict[Phase, float] = {}
        self._to_learn: set[Phase] = {"init", "train"}

    def observe(self, time: float, phase: Phase, step: int | None = None) -> None:
        """A sign of progress: a further step, a batch of an evaluation, another phase.

        The wait before it belongs to the phase that the run was in, not to the one it enters.
        """
        waited = time - self._last
        if waited > 0:
            self._add(self._phase, waited)
        self._last = time  # also back: a clock that was set back must not blind the watch until it caught up
        self._stalled = False
        self._phase = phase
        self._step = step if step is not None else self._step
        if phase not in self._thresholds:
            self._to_learn.add(phase)

    def check(self, now: float) -> StallState:
        """The state at `now`; a stall begins with the first check that finds one."""
        quiet = max(0.0, now - self._last)
        threshold = self.thresholds[self._phase]
        if quiet > threshold and not self._stalled:
            self._stalled = True
            self._episode += 1
        return StallState(self._stalled, self._phase, self._step, self._last, quiet, threshold, self._episode)

    def set_back(self, now: float) -> None:
        """It is `now`, at most: after a clock was set back no sign of progress lies in the future."""
        self._last = min(self._last, now)

    def pause(self, seconds: float) -> None:
        """The watch itself stood still (a suspended machine, Ctrl-Z): that time tells nothing of the run."""
        self._last += seconds

    def take_over(self, durations: Mapping[Phase, Sequence[float]], last_sign: float) -> None:
        """Begin with a run that was up before: the rhythm in its log, and its last sign of life."""
        for phase, seconds in durations.items():
            self._durations.setdefault(phase, deque(maxlen=_REMEMBERED)).extend(seconds)
            self._to_learn.add(phase)
        self._last = last_sign
        self._stalled = False

    @property
    def thresholds(self) -> dict[Phase, float]:
        """The threshold of each phase met until now, in seconds."""
        for phase in self._to_learn:  # put off until someone asks: steps may come by the thousand
            self._thresholds[phase] = stall_threshold(
                list(self._durations.get(phase, ())),
                floor=self._settings.stall_floor_seconds,
                start=self._settings.stall_start_seconds,
                factor=self._settings.stall_factor,
            )
        self._to_learn.clear()
        return dict(self._thresholds)

    def _add(self, phase: Phase, waited: float) -> None:
        durations = self._durations.setdefault(phase, deque(maxlen=_REMEMBERED))
        if self._stalled:
            # A stall must not teach the watch to wait longer for the next one, unless it is the run's habit.
            pauses = self._pauses.setdefault(phase, [])
            pauses.append(waited)
            if len(pauses) < _PART_OF_THE_RHYTHM:
                return
            durations.extend(pauses)
            pauses.clear()
        else:
            durations.append(waited)
        self._to_learn.add(phase)
