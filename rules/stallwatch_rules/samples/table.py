"""Samples as rows of a table: one for each line that holds numbers, in the order of the lines.

A progress bar is drawn again and again in one physical line. Of the drawings that tell no more than how far
the bar is, the last one of the line makes a row; those that tell a loss are rows each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stallwatch_rules.records import Line, Sample
from stallwatch_rules.samples import extract

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
    "kl",
    "skipped",
)
COLUMNS = ("rank", "time", "step", "total_steps", "phase", "file", "line", *FIELDS)

Row = tuple[int | float | str | None, ...]  #: by COLUMNS
_BARE = frozenset(("step_seconds", "elapsed_seconds", "epoch"))
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


class RowReader:
    """Makes rows of lines, one line after the other: the reference for every faster way."""

    def __init__(self) -> None:
        self._bar: tuple[Line, Sample] | None = None  # the last bare drawing of its line so far

    def feed(self, lines: Iterable[Line]) -> Iterator[Row]:
        """The rows that are known with these lines."""
        for line in lines:
            if self._bar is not None and self._bar[0].number != line.number:
                yield from self.finish()
            sample = extract(line)
            if sample is None or not tells(sample):
                continue
            if is_bare(sample):
                self._bar = line, sample
            else:
                yield row_of(line, sample)

    def finish(self) -> Iterator[Row]:
        """The row of the bar that is still held back."""
        if self._bar is not None:
            line, sample = self._bar
            self._bar = None
            yield row_of(line, sample)


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
