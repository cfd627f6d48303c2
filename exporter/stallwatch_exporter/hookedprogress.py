"""Progress where the ranks themselves tell of their steps: they win over what the log says of them.

The log still tells what the probe does not see: evaluations, saves and rollouts by their bars and messages.
"""

from __future__ import annotations

from stallwatch_exporter.probe.layout import PHASES
from stallwatch_exporter.ringreader import Record
from stallwatch_rules.progress import ProgressTracker
from stallwatch_rules.records import Line, Phase, Sample

SOURCE = "probe"
_NO_PAUSE = ("init", "train")


class HookedProgress(ProgressTracker):
    """As without a probe, until the first step that one tells of."""

    def __init__(self) -> None:
        super().__init__()
        self.heard_at = 0.0  #: when the lines came that are being read, by our own clock
        self._hooked = False
        self._stepped_at = 0.0  # when the last step was, by the ranks
        self._told: tuple[float, Phase] = (0.0, "init")  # the last phase that a rank told
        self._logged: tuple[float, Phase] = (0.0, "init")  # and that the log told
        self._numbers: dict[int, int] = {}

    def add(self, sample: Sample | None, line: Line) -> bool:
        """Take in a line of the log."""
        known = self._streams.get((line.source, line.rank))
        before = (known.phase, known.phase_time) if known is not None else None
        counted = self._furthest, self.first_step
        progressed = super().add(sample, line)
        if self._hooked:
            self._furthest, self.first_step = counted
        stream = self._streams.get((line.source, line.rank))
        if stream is not None and (stream.phase, stream.phase_time) != before:
            self._logged = (self.heard_at, stream.phase)
        return progressed

    def hooked(self, record: Record) -> Sample | None:
        """Take in what a rank told; the sample that it is, or ``None`` where it tells of no step."""
        values = dict(record.values)
        phase = values.pop("phase", None)
        step, total = values.pop("step", None), values.pop("target_steps", None)
        if step is None:
            if phase is not None and 0 <= phase < len(PHASES):
                self._told = (record.time, PHASES[int(phase)])  # type: ignore[assignment]  # they are those
            return None
        if not self._hooked:
            self._hooked = True
            self._furthest, self.first_step = (1, -1), None  # what the log counted may be something else
        number = self._numbers[record.rank] = self._numbers.get(record.rank, 0) + 1
        sample = Sample(
            rank=record.rank,
            time=record.time,
            step=int(step),
            total_steps=int(total) if total else None,
            values=values,
            series=SOURCE,
        )
        self._stepped_at = max(self._stepped_at, record.time)
        super().add(sample, Line("", SOURCE, number, record.rank, record.time))
        return sample

    @property
    def phase(self) -> Phase:
        """What the run is doing: what was told since the last step, else training."""
        if not self._hooked:
            at, told = self._told
            return told if at and told not in _NO_PAUSE and not self.progressed else super().phase
        for at, told in sorted((self._told, self._logged), reverse=True):
            if at > self._stepped_at and told not in _NO_PAUSE:
                return told
        return "train"
