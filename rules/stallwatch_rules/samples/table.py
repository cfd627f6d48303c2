"""Convert samples to rows of a table. The rows are in the order of the lines.

A progress bar is redrawn repeatedly in one physical line. Each state of the bar that shows a loss becomes a
row. Of the states that show no loss, only the last state in the line becomes a row. A loss without a step
number gets the step of the training's progress bar in the same line or at most two lines before it. If the
bar is in the same line, the loss and the bar become one row.

transformers' Trainer prints ``{'loss': …}`` without a step number, between the states of a tqdm bar
(transformers 4.57, ``trainer_callback.py``: ``ProgressCallback.on_log``). The last bar before the loss shows
the step, unless the bar belongs to an evaluation. A bar with a smaller total than an earlier bar belongs to
an evaluation, unless its total equals the total of the bar at the first loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from stallwatch_rules.records import Line, Sample
from stallwatch_rules.samples import extract
from stallwatch_rules.samples.series import ROUNDS, SeriesReader

NEAR = 2  #: maximum number of lines between a bar and a loss that belong together


class DrawnBar(NamedTuple):
    """The last state of a progress bar that a line shows."""

    line: int
    step: int
    total: int


class BarSteps:
    """The progress bars of one source, by rank.

    These bars provide the steps of losses that have no step numbers.
    """

    def __init__(self) -> None:
        self.last: dict[int | None, DrawnBar] = {}
        self.longest: dict[int | None, int] = {}
        self.trained: dict[int | None, int] = {}  #: rank → total of the bar at the first loss

    def see(self, rank: int | None, bar: DrawnBar) -> None:
        """Record the last state of a bar in a line."""
        self.last[rank] = bar
        self.longest[rank] = max(bar.total, self.longest.get(rank, 0))

    def at(self, rank: int | None, line: int) -> DrawnBar | None:
        """Return the training bar in this line or up to `NEAR` lines earlier, or ``None`` if none exists."""
        bar = self.last.get(rank)
        if bar is None or line - bar.line > NEAR:
            return None
        if bar.total >= self.longest[rank]:
            self.trained.setdefault(rank, bar.total)
        elif bar.total != self.trained.get(rank):
            return None
        return bar


FIELDS = (
    "loss", "eval_loss", "grad_norm", "learning_rate", "loss_scale", "epoch", "step_seconds",
    "tokens_per_second", "samples_per_second", "memory_allocated_bytes", "memory_peak_bytes", "reward",
    "reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy", "kl", "skipped", "reward_std",
    "advantage_min", "advantage_max", "entropy", "eval_accuracy",
)  # fmt: skip
COLUMNS = ("rank", "time", "step", "total_steps", "phase", "file", "line", *FIELDS)

Row = tuple[int | float | str | None, ...]  #: the values of COLUMNS, in order
_FIELDS = frozenset(FIELDS)
_BARE = frozenset(("step_seconds", "elapsed_seconds", "epoch", "epochs"))
_LOSS, _EVAL_LOSS = FIELDS.index("loss"), FIELDS.index("eval_loss")
_MOST_HELD = 1000
_SKIPPED = ("skipped_steps", "skipped_iterations")


class Entry(msgspec.Struct, gc=False):
    """The values that a sample provides for a row of the table."""

    rank: int | None
    time: float | None
    step: int | None
    total_steps: int | None
    bare: bool  #: True if the sample is a state of a bar without metrics
    fields: tuple[float | None, ...]  #: the values of FIELDS, in order


def as_entry(sample: Sample | None) -> Entry | None:
    """Convert a sample to the values of a row. Return ``None`` if the sample does not become a row."""
    if sample is None:
        return None
    values = {name: value for name, value in sample.values.items() if name in _FIELDS}
    for name in _SKIPPED:
        if name in sample.values:
            values["skipped"] = sample.values[name]
    step, total = sample.step, sample.total_steps
    if sample.series.startswith(ROUNDS):  # the counter counts epochs or episodes, not steps
        step = total = None
        if values.keys() <= {"epoch"}:
            return None
    if step is None and not values:
        return None
    bare = sample.from_bar and _BARE.issuperset(sample.values)
    fields = tuple(map(values.get, FIELDS))
    return Entry(sample.rank, sample.time, step, total or None, bare, fields)


def _lacks_step(entry: Entry) -> bool:
    return entry.step is None and entry.fields[_LOSS] is not None


class RowReader:
    """A reader that converts the samples of one source to rows, in the order of the lines."""

    def __init__(self, source: str, series: SeriesReader | None = None) -> None:
        self._source = source
        self._sample_of = extract if series is None else series.read
        self._rows: list[Row] = []
        self._number = 0  # line number of the last sample
        self._bar: Entry | None = None  # the last ``bare`` entry in the line with the number ``_number``
        self._held: list[Entry] = []  # the first entry without a step in the line, and all entries after it
        self._bars = BarSteps()

    def feed(self, lines: Iterable[Line]) -> None:
        """Read the samples of the next lines."""
        for line in lines:
            entry = as_entry(self._sample_of(line))
            if entry is not None:
                self.take(line.number, entry)

    def take(self, number: int, entry: Entry) -> None:
        """Add the values that were read from the line with this line number."""
        if number != self._number:
            if self._bar is not None or self._held:
                self._end_line()
            self._number = number
        if entry.bare:
            self._bar = entry
        elif self._held or _lacks_step(entry):
            self._held.append(entry)
            if len(self._held) > _MOST_HELD:
                self._end_line()
        else:
            self._rows.append(self._row(entry))

    def known(self) -> list[Row]:
        """Return the rows that have been completed since the last call.

        Rows of the last line are not included, because they can still change.
        """
        rows, self._rows = self._rows, []
        return rows

    def finish(self) -> list[Row]:
        """Return all remaining rows at the end of the source."""
        self._end_line()
        return self.known()

    def _end_line(self) -> None:
        bar, held = self._bar, self._held
        self._bar, self._held = None, []
        if bar is not None and bar.step is not None and bar.total_steps:
            self._bars.see(bar.rank, DrawnBar(self._number, bar.step, bar.total_steps))
        drawn = bar
        for entry in held:
            beside = self._bars.at(entry.rank, self._number) if _lacks_step(entry) else None
            if beside is not None:
                entry.step, entry.total_steps = beside.step, beside.total
                if beside.line == self._number and drawn is not None:  # the bar and the loss become one row
                    pairs = zip(entry.fields, drawn.fields, strict=True)
                    entry.fields = tuple([other if value is None else value for value, other in pairs])
                    bar = None
            self._rows.append(self._row(entry))
        if bar is not None:
            self._rows.append(self._row(bar))

    def _row(self, entry: Entry) -> Row:
        fields = entry.fields
        return (
            entry.rank,
            entry.time,
            entry.step,
            entry.total_steps,
            "eval" if fields[_LOSS] is None and fields[_EVAL_LOSS] is not None else "train",
            self._source,
            self._number,
            *fields,
        )
