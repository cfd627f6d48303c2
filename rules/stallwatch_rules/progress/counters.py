"""One step counter of one stream of lines: how far it is, how fast it goes, and when it started again."""

from __future__ import annotations

from collections import deque

from stallwatch_rules.records import Phase, Sample

KEPT = 4096  #: durations kept per phase; older ones say little about the run as it is now
_SURE_DROP = 8  # a step this many usual steps lower is a restart at once
_LOW_STEPS = 3  # smaller drops may be a slower rank in the same stream: so many low steps in a row decide


class Counter:
    """Follows one counter. ``seen`` tells whether it rose.

    A counter that falls has started again: with a new epoch (then its epochs are added up) or with a new
    attempt of the run.
    """

    __slots__ = (
        "_delta",
        "_epoch",
        "_low",
        "_offset",
        "_rose_at",
        "_since",
        "_start",
        "attempt",
        "counts_steps",
        "durations",
        "evaluates",
        "first",
        "gaps",
        "last",
        "nested",
        "rises",
        "step_seconds",
        "stride",
        "total",
        "waited",
    )

    def __init__(self, counts_steps: bool, attempt: int = 1) -> None:
        self.counts_steps = counts_steps  #: else it only counts the lines that show life
        self.nested = False  #: an evaluation's, as its bar inside the training's is
        self.evaluates = False  #: nested for certain: the log announced the evaluation
        self.attempt = attempt
        self.first: int | None = None
        self.last: int | None = None
        self.total: int | None = None
        self.waited = 0.0  #: seconds by the trainer's own clock that its bar stood at the last step
        self._rose_at: float | None = None  # what that clock said at the last step
        self.rises = 0
        self.stride = 1  #: steps of the last rise of this attempt
        self.gaps = 0  #: how often lines of this counter were left out before the last one that was read
        self.durations: dict[Phase, deque[float]] = {}  #: seconds from one observed rise to the next
        self.step_seconds: deque[float] = deque(maxlen=KEPT)
        self._delta: int | None = None  # the smallest rise
        self._epoch: float | None = None
        self._low: list[int] = []
        self._offset = 0
        self._start: int | None = None  # where this attempt started
        self._since: tuple[int, float | None, float | None] | None = None  # step, time, elapsed

    @property
    def complete(self) -> bool:
        """Whether the counter reached its total."""
        return self.total is not None and self.last is not None and self.last >= self.total > 0

    def seen(self, sample: Sample, phase: Phase) -> bool:
        """Take a sample in; ``phase`` is what went on since the last rise."""
        epoch = sample.values.get("epoch")
        if sample.total_steps:
            self.total = sample.total_steps
        if sample.from_bar and not sample.step and self.last is not None and epoch == self._epoch is not None:
            return False  # the bar of an epoch that is done, cleared for the next
        step = self.rises + 1 if sample.step is None else sample.step + self._offset
        if self.last is not None and step < self.last:
            if self._next_epoch(step, epoch, sample.values.get("epoch_steps")):
                self._offset = self.last
                step = self.last + max(1, sample.step or 0)
            elif self._restarted(step):
                self._begin(step)
            else:
                return False
        rose = self.last is None or step > self.last
        if epoch is not None:
            self._epoch = epoch
        elapsed = sample.values.get("elapsed_seconds")
        if rose:
            if self._low:
                self._low.clear()
            self._rise(step, sample, phase)
            self.waited, self._rose_at = 0.0, elapsed
        elif elapsed is not None and self._rose_at is not None and step == self.last:
            self.waited = max(self.waited, elapsed - self._rose_at)
        return rose

    def resume(self, gaps: int) -> None:
        """Where lines were left out since the last: no duration is measured over the gap."""
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
        """Whether a counter that fell is one of each epoch's steps: it names a later epoch, or it is known to
        begin anew with each of so many steps (0: of a number that is not known)."""
        assert self.last is not None
        if epoch is not None and self._epoch is not None and epoch >= self._epoch + 1:
            return True
        return length is not None and (self.last - self._offset >= length > 0 or self._restarted(step))

    def _begin(self, step: int) -> None:
        self.attempt += 1
        self._offset = 0
        self.stride = 1
        self.last = None
        self._start = step
        self._since = None
        self._low.clear()

    def _rise(self, step: int, sample: Sample, phase: Phase) -> None:
        if self.first is None:
            self.first = self._start = step
        if self.last is not None:
            self.stride = rise = step - self.last
            if self._delta is None or rise < self._delta:
                self._delta = rise
        self.last = step
        self.rises += 1
        elapsed = sample.values.get("elapsed_seconds")
        if self._since is None and sample.time is None and elapsed is None and not sample.from_bar:
            told = sample.values.get("step_seconds")  # no clock will tell of this step
            if told is not None and phase == "train":
                self.step_seconds.append(told)
        if self._since is not None:
            since, time_then, elapsed_then = self._since
            seconds = _seconds(time_then, sample.time, elapsed_then, elapsed)
            if seconds is None:
                told = sample.values.get("step_seconds")
                if told is not None and phase == "train":
                    self.step_seconds.append(told)
                if sample.time is not None and sample.time == time_then and elapsed == elapsed_then:
                    return  # the clock has not moved: measure from where it last did
            else:
                durations = self.durations.get(phase)
                if durations is None:
                    durations = self.durations[phase] = deque(maxlen=KEPT)
                durations.append(seconds)
                if phase == "train":
                    self.step_seconds.append(seconds / (step - since))
        self._since = (step, sample.time, elapsed)


def _seconds(
    time_then: float | None, time: float | None, elapsed_then: float | None, elapsed: float | None
) -> float | None:
    """The time between two rises by the lines' times and by the trainer's own clock (whole seconds).

    The lines' times are finer, but where most lines have none, a time may be that of some earlier line:
    the trainer's clock then says less.
    """
    by_lines = time - time_then if time is not None and time_then is not None else 0.0
    if elapsed is None or elapsed_then is None or elapsed < elapsed_then:
        return by_lines if by_lines > 0 else None
    by_trainer = elapsed - elapsed_then
    if by_lines <= 0 or by_trainer + 1.5 < by_lines:
        return by_trainer if by_trainer > 0 else None
    return by_lines
