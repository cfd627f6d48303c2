"""Track the progress of a watched run from its ranks' reports and its log.

Steps and phases in the ranks' reports take precedence over the log. The log can also show phases that no
probe detects, such as custom evaluations and saves, through their progress bars and messages.
"""

from __future__ import annotations

import msgspec

from stallwatch_exporter.probe.layout import PHASES
from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.watching.stall import StallWatch
from stallwatch_rules.endings import Ending
from stallwatch_rules.progress.tracker import NOWHERE, ProgressTracker
from stallwatch_rules.records import Line, Phase, Sample

SOURCE = "probe"
_NO_PAUSE = ("init", "train")
_COUNTED = ("batches", "epochs", "switches")  #: signs of life, except steps (snapshots also use "forwards")
_LATE = 5.0  #: Seconds after the ranks' last step. A step that is logged later counts something else.
_SILENT = 30.0  #: seconds without reports after which ranks might have lost their probes, so the log is used


class _Rank:
    """Last reports from one rank."""

    def __init__(self) -> None:
        self.phase: Phase = "init"
        self.since = 0.0  #: time at which the phase began
        self.beats = 0.0
        self.step = -1
        self.stepped_at = 0.0
        self.records = 0
        self.restarts = 0
        self.counted: dict[str, float] = {}  #: totals of the fields in ``_COUNTED``


class HookedProgress(ProgressTracker):
    """Progress of a run, read from the log until a rank reports a step, and then from the ranks' reports."""

    def __init__(self) -> None:
        super().__init__()
        self.reported_at = 0.0  #: arrival time of the current lines, by the agent's clock
        self.active_at = 0.0  #: time of the last sign of life other than a step or a phase
        self._hooked = False
        self._stepped_at = 0.0  # time of the ranks' last step
        self._reported_at = 0.0  # time of the ranks' last report
        self._logged_until = 0.0  # time of the last step in the log before any rank reported a step
        self._left_at = 0.0  # time at which all known ranks had ended
        self._ranks: dict[int, _Rank] = {}
        self._logged: tuple[float, Phase] = (0.0, "init")  # time and name of the last phase in the log

    @property
    def hooked_ranks(self) -> bool:
        """Return whether any rank reports its own steps."""
        return bool(self._ranks)

    @property
    def repeats(self) -> bool:
        """Return whether the last step that ranks reported has already been counted from the log."""
        return self._hooked and self._stepped_at <= self._logged_until

    def add(self, sample: Sample | None, line: Line) -> bool:
        """Process a log line and its sample. Return whether the run progressed."""
        known = self._streams.get((line.source, line.rank))
        before = (known.phase, known.phase_time) if known is not None else None
        counted = self._furthest, self.first_step, self.last_progress_time
        progressed = super().add(sample, line)
        stream = self._streams.get((line.source, line.rank))
        if self._hooked and self.reported_at - self._reported_at < _SILENT:
            self._furthest, self.first_step = counted[:2]
            if stream is None or stream.phase in _NO_PAUSE:
                self.last_progress_time = counted[2]  # the log repeats a step that a rank reported
                if progressed and self.reported_at - self._stepped_at > _LATE:
                    self.active_at = max(self.active_at, self.reported_at)
        elif progressed and not self._hooked:
            self._logged_until = self.reported_at
        if stream is not None and (stream.phase, stream.phase_time) != before:
            self._logged = (self.reported_at, stream.phase)
        return progressed

    def hooked(self, record: Record) -> Sample | None:
        """Process a rank's report. Return its sample, or ``None`` if the report contains no step."""
        values = dict(record.values)
        self._count(record, {name: values.pop(name) for name in _COUNTED if name in values})
        values.pop("forwards", None)
        phase, beats = values.pop("phase", None), values.pop("beats", None)
        step, total = values.pop("step", None), values.pop("target_steps", None)
        rank = self._ranks.setdefault(record.rank, _Rank())
        self._reported_at = max(self._reported_at, record.time)
        if step is not None:
            return self._stepped(rank, record, int(step), int(total) if total else None, values)
        if phase is not None and 0 <= phase < len(PHASES):
            self._phase_reported(rank, record, PHASES[int(phase)], beats or 0.0)  # type: ignore[arg-type]
        return None

    def _count(self, record: Record, totals: dict[str, float]) -> None:
        """Record a rank's counters that show activity other than steps."""
        rank = self._ranks.setdefault(record.rank, _Rank())
        if any(total > rank.counted.get(name, 0.0) for name, total in totals.items()):
            self.active_at = max(self.active_at, record.time)
        rank.counted = totals

    def ended(self, time: float) -> None:
        """Record that all local ranks ended. Their launcher also ends, or it restarts the ranks."""
        for rank in self._ranks.values():
            rank.phase, rank.since = "init", time
        self._left_at = time
        self._advanced(time)

    def _phase_reported(self, rank: _Rank, record: Record, phase: Phase, beats: float) -> None:
        changed = phase != rank.phase
        alive = beats != rank.beats and phase not in _NO_PAUSE and record.rank == min(self._ranks)
        rank.beats = beats
        if changed:
            rank.phase, rank.since = phase, record.time
        if alive and not changed:  # a phase that ranks enter one after another is a single sign of life
            self._advanced(record.time)

    def _stepped(
        self, rank: _Rank, record: Record, step: int, total: int | None, values: dict[str, float]
    ) -> Sample:
        if not self._hooked:
            self._hooked = True
            # The log might have counted something other than steps.
            self._furthest, self.first_step = NOWHERE, None
        if step < rank.step:
            rank.restarts += 1
        rank.phase, rank.since, rank.step, rank.stepped_at = "train", record.time, step, record.time
        rank.records += 1
        self._stepped_at = max(self._stepped_at, record.time)
        # The source is named like a folder of torchrun, so that the tracker counts another attempt.
        source = f"{SOURCE}/attempt_{rank.restarts}/" if rank.restarts else SOURCE
        sample = Sample(
            rank=record.rank,
            time=record.time,
            step=step,
            total_steps=total,
            values=values,
            series=SOURCE,
        )
        super().add(sample, Line("", source, rank.records, record.rank, record.time))
        return sample

    def _advanced(self, time: float) -> None:
        if self.last_progress_time is None or time > self.last_progress_time:
            self.last_progress_time = time

    @property
    def phase(self) -> Phase:
        """Phase of the run, or, if a rank pauses training, the phase of that rank until its next step."""
        pauses = [rank for rank in self._ranks.values() if self._pauses(rank)]
        if pauses:
            latest = max(pauses, key=lambda rank: rank.since)
            logged_at, logged = self._logged
            return logged if logged_at > latest.since and logged not in _NO_PAUSE else latest.phase
        if not self._hooked:
            return "init" if self._left_at > self._logged_until else super().phase
        logged_at, logged = self._logged
        reported_at = max((rank.since for rank in self._ranks.values()), default=0.0)
        return (
            logged if logged_at > max(self._stepped_at, reported_at) and logged not in _NO_PAUSE else "train"
        )

    def _pauses(self, rank: _Rank) -> bool:
        """Return whether the rank pauses training.

        Before its first step, the rank pauses training only until another rank completes a step.
        """
        if rank.phase == "train" or not rank.since:
            return False
        if not self._hooked:
            return rank.phase != "init" and not self.progressed
        return rank.step >= 0 or rank.since > self._stepped_at


_SIGN_SECONDS = 1.0  #: minimum number of seconds between two signs of life that are recorded
_AT_HAND = 2  #: number of steps that a run can still finish after a request to end


class Advance:
    """Pass the progress of a run to the stall watch and the metrics. Call `seen` after reading input."""

    def __init__(self, tracker: HookedProgress, watch: StallWatch, metrics: RunMetrics) -> None:
        self._tracker = tracker
        self._watch = watch
        self._metrics = metrics
        self._shown: tuple[object, ...] = (None, None, 1)  # signs of progress at the last call to `seen`
        self._attempt = 1
        self._step: int | None = None
        self._step_at: float | None = None  # None if the time before the next step includes other work
        self._ranks: dict[int | None, int] = {}
        self._phase: Phase = "init"
        self._stop_requested: tuple[int, int] | None = None  # attempt and step at the request to end
        self._quiet = 0.0  # seconds without progress at the request to end

    def seen(self, now: float) -> bool:
        """Pass on the changes since the last call and return whether the run progressed."""
        tracker = self._tracker
        leaving = self._leaving
        phase: Phase = "idle" if tracker.surely_finished or leaving else tracker.phase
        self._watch.only_reached_total = phase == "idle" and not leaving and tracker.only_reached_total
        self._watch.learnt.log_only = not tracker.hooked_ranks
        shown = (tracker.last_progress_time, tracker.last_step, tracker.attempt)
        progressed = shown != self._shown
        if phase == self._phase and tracker.active_at - self._watch.last_sign >= _SIGN_SECONDS:
            self._watch.observe(tracker.active_at, phase)  # a sign of life that is neither a step nor a phase
        if not progressed and phase == self._phase:
            return False
        advanced = phase != self._phase or shown[1:] != self._shown[1:]
        self._shown = shown
        # Several ranks report the same step at different times, so only the first report counts.
        if advanced or phase != "train" or tracker.last_step is None:
            self._watch.observe(now, phase, tracker.last_step)
        if phase != "train":
            self._step_at = None
        if progressed:
            self._steps(now, phase)
        if phase != self._phase:
            if self._phase == "save":
                self._metrics.saved(now)
            self._metrics.phase(phase)
            self._phase = phase
        return progressed

    def stop_requested(self, now: float) -> None:
        """Handle a request to end, by Control+C or a signal.

        While the command then saves, it might make no progress. Such a quiet period is not a stall, unless
        the run had stalled before. If training continues, the run is watched as before.
        """
        state = self._watch.check(now, begin=False)
        if self._stop_requested is None and not state.stalled:
            self._stop_requested = self._tracker.attempt, self._tracker.last_step or 0
            self._quiet = state.seconds
            self.seen(now)

    def judged(self, ending: Ending) -> Ending:
        """Return the command's ending. The time after a request to end is excluded from the quiet time."""
        if ending.stopped and self._leaving:
            return msgspec.structs.replace(ending, quiet=self._quiet)
        return ending

    @property
    def _leaving(self) -> bool:
        tracker = self._tracker
        if self._stop_requested is None or tracker.phase not in ("init", "train"):
            return False
        attempt, step = self._stop_requested
        return tracker.attempt == attempt and (tracker.last_step or 0) <= step + _AT_HAND

    def history(self, last_sign: float) -> None:
        """Take over a run that started before the agent, and whose files were last written at `last_sign`."""
        tracker = self._tracker
        self.seen(last_sign)
        self._step_at = None
        phases: tuple[Phase, ...] = ("train", "eval", "save", "rollout", "weight-sync")
        known = {phase: tracker.durations(phase) for phase in phases}
        if not known["train"]:  # steps were not timed, but a trainer can print their duration
            known["train"] = [seconds * tracker.stride for seconds in tracker.step_seconds()]
        self._watch.take_over({phase: found for phase, found in known.items() if found}, last_sign)

    def _steps(self, now: float, phase: Phase) -> None:
        tracker = self._tracker
        step = tracker.last_step
        if tracker.attempt != self._attempt:
            self._attempt, self._step_at = tracker.attempt, None
        if step != self._step:
            # Do not count steps twice. The records of a rank's first second arrive after the log lines of
            # the same steps.
            self._metrics.progress(step, tracker.total_steps, counted=tracker.repeats)
            before, self._step = self._step, step
            made = 0 if step is None or before is None or tracker.repeats else step - before
            if made > 0 and self._step_at is not None:
                self._metrics.step_took((now - self._step_at) / made, made)
            self._step_at = now if phase == "train" else None
        ranks = tracker.steps
        for rank, at in ranks.items():
            if self._ranks.get(rank) != at:
                self._metrics.stepped(rank, now)
        self._ranks = ranks
