"""Samples as rows of a table: one for each line that holds numbers, in the order of the lines.

A progress bar is drawn again and again in one physical line. Of the drawings that tell no more than how far
the bar is, the last one of the line makes a row; those that tell a loss are rows each. A loss without a step
has that of the training's bar beside it; if that stands in the same line, both are one row.

transformers' Trainer prints ``{'loss': …}`` without a step and draws a tqdm bar of its steps around it
(transformers 4.57, ``trainer_callback.py``: ``ProgressCallback.on_log``). The bar that stands last before the
line, in the same line or just above, tells the step, unless it is shorter than another one was: then it is an
evaluation's, drawn inside of the training. An evaluation's bar may be the longer one: a bar as long as that
beside the first loss is the training's in any case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from stallwatch_rules.records import Line, Sample
from stallwatch_rules.samples import extract

NEAR = 2  #: lines between the bar and the loss


class Drawn(NamedTuple):
    """The last drawing of a bar."""

    line: int
    step: int
    total: int


class BarSteps:
    """The bars of one source, by the rank that draws them."""

    def __init__(self) -> None:
        self.last: dict[int | None, Drawn] = {}
        self.longest: dict[int | None, int] = {}
        self.trained: dict[int | None, int] = {}  #: the total of the bar beside the first loss

    def see(self, rank: int | None, bar: Drawn) -> None:
        """Take the last drawing of its line."""
        self.last[rank] = bar
        self.longest[rank] = max(bar.total, self.longest.get(rank, 0))

    def at(self, rank: int | None, line: int) -> Drawn | None:
        """The training's bar beside a line, if there is one."""
        bar = self.last.get(rank)
        if bar is None or line - bar.line > NEAR:
            return None
        if bar.total >= self.longest[rank]:
            self.trained.setdefault(rank, bar.total)
        elif bar.total != self.trained.get(rank):
            return None
        return bar


FIELDS = (
    "loss",
    "eval_loss",
    "grad_norm",
    "learning_rate",
    "loss_scale",
    "epoch",
    "step_seconds",
    "tokens_per_second",
    "samples_per_second",
    "memory_allocated_bytes",
    "memory_peak_bytes",
    "reward",
    "reward_chosen",
    "reward_rejected",
    "reward_margin",
    "reward_accuracy",
    "kl",
    "skipped",
)
COLUMNS = ("rank", "time", "step", "total_steps", "phase", "file", "line", *FIELDS)

Row = tuple[int | float | str | None, ...]  #: by COLUMNS
_FIELDS = frozenset(FIELDS)
_BARE = frozenset(("step_seconds", "elapsed_seconds", "epoch"))
_MOST_HELD = 1000
_SKIPPED = ("skipped_steps", "skipped_iterations")


def as_row(sample: Sample | None) -> Sample | None:
    """The sample with its values by the table's names; ``None`` if it makes no row.

    ``from_bar`` is left only to a drawing that tells no more than how far its bar is.
    """
    if sample is None:
        return None
    values = {name: value for name, value in sample.values.items() if name in _FIELDS}
    for name in _SKIPPED:
        if name in sample.values:
            values["skipped"] = sample.values[name]
    if sample.step is None and not values:
        return None
    bare = sample.from_bar and _BARE.issuperset(sample.values)
    return msgspec.structs.replace(sample, values=values, from_bar=bare)


def _lacks_step(sample: Sample) -> bool:
    """Whether the sample tells the training's loss, and not at which step."""
    return sample.step is None and "loss" in sample.values


class RowReader:
    """Makes rows of the samples of one source, in the order of their lines."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._rows: list[Row] = []
        self._number = 0  # the line of the last sample
        self._bar: Sample | None = None  # the last bare drawing of that line so far
        self._held: list[Sample] = []  # from the first on that lacks a step, until its line ends
        self._bars = BarSteps()

    def feed(self, lines: Iterable[Line]) -> None:
        """Take the samples of further lines."""
        for line in lines:
            sample = as_row(extract(line))
            if sample is not None:
                self.take(line.number, sample)

    def take(self, number: int, sample: Sample) -> None:
        """Take the sample, as ``as_row`` gives it, of the line with this number."""
        if number != self._number:
            if self._bar is not None or self._held:
                self._end_line()
            self._number = number
        if sample.from_bar:
            self._bar = sample
        elif self._held or _lacks_step(sample):
            self._held.append(sample)
            if len(self._held) > _MOST_HELD:
                self._end_line()
        else:
            self._rows.append(self._row(sample))

    def known(self) -> list[Row]:
        """The rows since the last call, without those of the last line, which may go on."""
        rows, self._rows = self._rows, []
        return rows

    def finish(self) -> list[Row]:
        """All rows that are left, when the source ends."""
        self._end_line()
        return self.known()

    def _end_line(self) -> None:
        bar, held = self._bar, self._held
        self._bar, self._held = None, []
        if bar is not None and bar.step is not None and bar.total_steps:
            self._bars.see(bar.rank, Drawn(self._number, bar.step, bar.total_steps))
        drawn = bar
        for sample in held:
            beside = self._bars.at(sample.rank, self._number) if _lacks_step(sample) else None
            if beside is not None:
                values = sample.values
                if beside.line == self._number and drawn is not None:  # its step is told once
                    values, bar = {**drawn.values, **values}, None
                sample = msgspec.structs.replace(
                    sample, step=beside.step, total_steps=beside.total, values=values
                )
            self._rows.append(self._row(sample))
        if bar is not None:
            self._rows.append(self._row(bar))

    def _row(self, sample: Sample) -> Row:
        values = sample.values
        return (
            sample.rank,
            sample.time,
            sample.step,
            sample.total_steps or None,
            "eval" if "eval_loss" in values and "loss" not in values else "train",
            self._source,
            self._number,
            *map(values.get, FIELDS),
        )
