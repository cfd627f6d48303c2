"""Follow the steps, restarts, and durations of one step counter in a stream of lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from stallwatch_rules.lines import stamps
from stallwatch_rules.records import Phase, Sample

KEPT = 4096  #: maximum number of durations in each phase; older durations do not reflect the current speed

# A drop by more than this multiple of the smallest rise shows a restart without further evidence.
_SURE_DROP = 8
_LOW_STEPS = 3  # number of consecutive lower steps that show a restart; a slow rank can cause fewer of them


@dataclass(slots=True, eq=False)
class Counter:
    """One step counter in the lines of one rank. The method ``seen`` reads the samples in order.

    The value of a counter decreases when a new epoch begins or when the run restarts. When a new epoch
    begins, the counter adds up the steps of all epochs.
    """

    #: True if the counter counts steps, or False if an increase shows only that the run is alive.
    counts_steps: bool
    attempt: int = 1
    #: True if the counter counts epochs, episodes, or games (used as steps if the log shows no finer unit).
    rounds: bool = False
    #: True if the counter belongs to an evaluation, such as a bar inside the training's bar.
    nested: bool = False
    evaluates: bool = False  #: True if the counter belongs to an evaluation that the log announced
    first: int | None = None  #: first step of this attempt, as printed in the log
    last: int | None = None
    total: int | None = None
    bar: bool = False
    waited: float = 0.0  #: seconds spent at the last step, according to the clock in the trainer's bar
    rises: int = 0
    stride: int = 1  #: number of steps by which the counter last rose in this attempt
    again: bool = False  #: True if the counter restarted after it had reached its total
    gaps: int = 0  #: number of gaps (skipped lines) before the last line of this counter

    #: phase → seconds between consecutive rises of the counter
    durations: dict[Phase, deque[float]] = field(default_factory=dict)
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    _rose_at: float | None = None  # time on the trainer's clock at the last rise of the counter
    _delta: int | None = None  # the smallest rise of the counter so far, in steps
    _epoch: float | None = None
    _low: list[int] = field(default_factory=list)
    _offset: int = 0
    _runs_on: bool = False  # True if the counter did not restart with a new epoch
    _ended: bool = False  # True if the counter is at the end of the last epoch
    _from_epoch: float | None = None  # the first epoch that the log shows
    _epochs: float | None = None
    # The step, the time of the line, and the time on the trainer's clock at the last rise of the counter.
    _since: tuple[int, float | None, float | None] | None = None

    @property
    def complete(self) -> bool:
        """True if the counter reached its total, or the total minus one if the counter starts at zero.

        If the steps of epochs are added up, the total is the number of steps in one epoch.
        """
        if self._ended:
            return True
        if not self.total or self.last is None:
            return False
        from_zero = self.first == 0 and self.stride == 1 and not self.bar
        return self.last - self._offset >= self.total - from_zero

    @property
    def endless(self) -> bool:
        """True if the counter counts epochs, or steps in an epoch, and the number of epochs is unknown.

        A counter that restarted after it had reached its total counts the steps of a part of the run.
        """
        unknown = (self.rounds and self.total is None) or (self._offset > 0 and self._epochs is None)
        return unknown or self.again

    @property
    def falls_short(self) -> bool:
        """True if at least two more lines of this counter are expected before it reaches its total."""
        if self.complete or self.last is None:
            return False
        if self.total:
            return self.last - self._offset + self.stride < self.total
        if self._epochs is None or self._epoch is None:
            return False
        return self._epoch < self._epochs - (self._from_epoch == 0)

    def seen(self, sample: Sample, phase: Phase) -> bool:
        """Read a sample. Return whether the counter increased.

        `phase` is the phase of the run since the last increase.
        """
        epoch = sample.values.get("epoch")
        if sample.total_steps:
            self.total = sample.total_steps
        if sample.from_bar and not sample.step and self.last is not None and epoch == self._epoch is not None:
            return False  # the program clears the bar of a completed epoch for the next epoch
        step = self.rises + 1 if sample.step is None else sample.step + self._offset
        if self.last is not None and (step < self.last or self._whole_epoch(step, sample.values)):
            if self._next_epoch(step, epoch, sample.values.get("epoch_steps")):
                self._offset = self.last
                step = self.last + max(1, sample.step or 0)
            elif self._restarted(step):
                self._begin()
            else:
                return False
        rose = self.last is None or step > self.last
        if self.last is None:
            self.first, self.bar, self._from_epoch = sample.step, sample.from_bar, epoch
        later = epoch is not None and self._epoch is not None and epoch >= self._epoch + 1
        if rose and later and self._since is not None and not self._offset:
            self._runs_on = True
        if self._runs_on and (stated := sample.values.get("stated_steps")):
            self.total = int(stated)
        if epoch is not None and (rose or not sample.from_bar):
            self._epoch = epoch  # a bar can show the next epoch before the program clears the bar
        self._epochs = sample.values.get("epochs", self._epochs)
        self._ended = self._ends(sample)
        elapsed = sample.values.get("elapsed_seconds")
        if rose:
            if self._low:
                self._low.clear()
            self._rise(step, sample, phase)
            self.waited, self._rose_at = 0.0, elapsed
        elif elapsed is not None and self._rose_at is not None and step == self.last:
            self.waited = max(self.waited, elapsed - self._rose_at)
        return rose

    def _whole_epoch(self, step: int, values: Mapping[str, float]) -> bool:
        """Return whether the sample is the first sample of its epoch and is at the end of this epoch."""
        known = "epoch" in values and self._epoch is not None and values["epoch"] > self._epoch
        return known and step == self.last and values.get("epoch_steps") == step - self._offset

    def _ends(self, sample: Sample) -> bool:
        """Return whether the sample is the last sample of the last epoch."""
        values = sample.values
        length, epochs = values.get("epoch_steps"), values.get("epochs")
        if not length or not epochs or sample.step is None or sample.step < length:
            return False
        return values.get("epoch", 0.0) >= epochs - (self._from_epoch == 0)

    def goes_back(self, sample: Sample) -> bool:
        """Return whether the step of the sample is lower than the last step of the counter."""
        if sample.step is None or self.last is None:
            return False
        epoch = sample.values.get("epoch")
        if epoch is not None and self._epoch is not None and epoch != self._epoch:
            return epoch < self._epoch
        return sample.step < self.last - self._offset

    def resume(self, gaps: int) -> None:
        """If lines have been skipped since the last sample, discard the start time of the current step."""
        if gaps != self.gaps:
            self.gaps, self._since = gaps, None

    def _restarted(self, step: int) -> bool:
        assert self.last is not None
        drop = self.last - step
        if drop > _SURE_DROP * (self._delta or 1):
            return True
        if self._low and step <= self._low[-1]:
            self._low.clear()
        self._low.append(step)
        return len(self._low) >= _LOW_STEPS

    def _next_epoch(self, step: int, epoch: float | None, length: float | None) -> bool:
        """Return whether a counter decreased because a new epoch began.

        A new epoch began if the line shows a later epoch, or if the counter restarts at the end of an epoch.
        `length` is the number of steps in an epoch (0 if unknown).
        """
        assert self.last is not None
        if epoch is not None and self._epoch is not None and epoch >= self._epoch + 1:
            return True
        return length is not None and (self.last - self._offset >= length > 0 or self._restarted(step))

    def _begin(self) -> None:
        self.again = self.complete
        self.attempt += 1
        self._offset = 0
        self._ended = False
        self.stride = 1
        self.last = None
        self._since = None
        self._low.clear()

    def _rise(self, step: int, sample: Sample, phase: Phase) -> None:
        if self.last is not None:
            self.stride = rise = step - self.last
            if self._delta is None or rise < self._delta:
                self._delta = rise
        self.last = step
        self.rises += 1
        elapsed = sample.values.get("elapsed_seconds")
        printed = sample.values.get("step_seconds") if phase == "train" else None
        if self._since is None:
            without_clock = sample.time is None and elapsed is None and not sample.from_bar
            if without_clock and printed is not None:
                self.step_seconds.append(printed)
        else:
            since, time_then, elapsed_then = self._since
            seconds = _seconds(time_then, sample.time, elapsed_then, elapsed)
            if seconds is not None:
                self.durations.setdefault(phase, deque(maxlen=KEPT)).append(seconds)
                if phase == "train":
                    self.step_seconds.append(seconds / (step - since))
            else:
                if printed is not None:
                    self.step_seconds.append(printed)
                if sample.time is not None and sample.time == time_then and elapsed == elapsed_then:
                    # The clock has not advanced, so the next duration is measured from the last change of the
                    # clock.
                    return
        self._since = (step, sample.time, elapsed)


def _seconds(
    time_then: float | None, time: float | None, elapsed_then: float | None, elapsed: float | None
) -> float | None:
    """Return the seconds between two increases of the counter, from line times or the trainer's clock.

    Line times are more precise than the trainer's clock, which shows whole seconds. However, if only a few
    lines have times, a line can have the time of an earlier line. In this case, the difference between the
    line times exceeds the difference on the trainer's clock, and the trainer's clock is used.
    """
    by_lines = stamps.elapsed(time_then, time) if time is not None and time_then is not None else 0.0
    if elapsed is None or elapsed_then is None or elapsed < elapsed_then:
        return by_lines if by_lines > 0 else None
    by_trainer = elapsed - elapsed_then
    if by_lines <= 0 or by_trainer + 1.5 < by_lines:
        return by_trainer if by_trainer > 0 else None
    return by_lines
