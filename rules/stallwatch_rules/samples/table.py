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

from collections.abc import Iterable, Iterator
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
_BARE = frozenset(("step_seconds", "elapsed_seconds", "epoch"))
_MOST_HELD = 1000
_SKIPPED = ("skipped_steps", "skipped_iterations")


def fields_of(sample: Sample) -> dict[str, float]:
    """The sample's values by the table's names."""
    values = {name: sample.values[name] for name in FIELDS if name in sample.values}
    for name in _SKIPPED:
        if name in sample.values:
            values["skipped"] = sample.values[name]
    return values


def phase_of(sample: Sample) -> str:
    """``eval`` where a line tells of an evaluation only, else ``train``."""
    return "eval" if "eval_loss" in sample.values and "loss" not in sample.values else "train"


def is_bare(sample: Sample) -> bool:
    """Whether the sample is a bar's drawing that tells no more than how far the bar is."""
    return sample.from_bar and _BARE.issuperset(sample.values)


def tells(sample: Sample) -> bool:
    """Whether the sample makes a row: it holds a step or one of the table's numbers."""
    return sample.step is not None or bool(fields_of(sample))


def lacks_step(sample: Sample) -> bool:
    """Whether the sample tells the training's loss, and not at which step."""
    return sample.step is None and "loss" in sample.values


class RowReader:
    """Makes rows of lines, one line after the other: the reference for every faster way."""

    def __init__(self) -> None:
        self._bar: tuple[Line, Sample] | None = None  # the last bare drawing of its line so far
        self._held: list[tuple[Line, Sample]] = []  # from the first on that lacks a step, until its line ends
        self._bars = BarSteps()

    def feed(self, lines: Iterable[Line]) -> Iterator[Row]:
        """The rows that are known with these lines."""
        number = None
        for line in lines:
            if line.number != number:
                number = line.number
                yield from self._leave(number)
            sample = extract(line)
            if sample is None or not tells(sample):
                continue
            if is_bare(sample):
                self._bar = line, sample
            elif self._held or lacks_step(sample):
                self._held.append((line, sample))
            else:
                yield row_of(line, sample)
            if len(self._held) > _MOST_HELD:
                yield from self.finish()

    def finish(self) -> Iterator[Row]:
        """The rows that are still held back."""
        bar, held = self._bar, self._held
        self._bar, self._held = None, []
        drawn = bar[1] if bar is not None else None
        if bar is not None:
            line, sample = bar
            if sample.step is not None and sample.total_steps:
                self._bars.see(sample.rank, Drawn(line.number, sample.step, sample.total_steps))
        for line, sample in held:
            beside = self._bars.at(sample.rank, line.number) if lacks_step(sample) else None
            if beside is not None:
                values = sample.values
                if beside.line == line.number and drawn is not None:  # its step is told once
                    values, bar = {**drawn.values, **values}, None
                sample = msgspec.structs.replace(
                    sample, step=beside.step, total_steps=beside.total, values=values
                )
            yield row_of(line, sample)
        if bar is not None:
            yield row_of(*bar)

    def _leave(self, number: int) -> Iterator[Row]:
        waiting = self._bar or (self._held[0] if self._held else None)
        if waiting is not None and waiting[0].number != number:
            yield from self.finish()


def row_of(line: Line, sample: Sample) -> Row:
    """The row of a line's sample."""
    values = fields_of(sample)
    return (
        sample.rank,
        sample.time,
        sample.step,
        sample.total_steps or None,
        phase_of(sample),
        line.source,
        line.number,
        *(values.get(name) for name in FIELDS),
    )
