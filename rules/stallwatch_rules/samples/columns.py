"""Columns of a block from what the plans' expressions found: numbers and times, all of a kind at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stallwatch_rules.samples.blocks import Block, Floats
from stallwatch_rules.samples.plans import Plan
from stallwatch_rules.samples.stamptimes import times
from stallwatch_rules.samples.templates import apply

Cells = Sequence[bytes]


class Columns:
    """Gathers the cells of all plans, so that each column is converted once."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._cells: dict[tuple[str, float, bool], list[tuple[slice, Cells]]] = {}

    def add(self, at: slice, plan: Plan, rows: list[Any]) -> None:
        """The rows that one plan has read."""
        block = self._block
        block.sample[at] = plan.sample
        block.bare[at] = plan.bare
        block.eval[at] = plan.constants.get("phase") == "eval"
        for name, value in plan.constants.items():
            if not isinstance(value, int | float) or name in ("sample", "bare"):
                continue
            if name in ("rank", "time"):
                getattr(block, name)[at] = value
            else:
                block.put(name, at, value)
        columns = [rows] if len(plan.groups) == 1 else zip(*rows, strict=True)
        for (name, factor), cells in zip(plan.groups, columns, strict=False):
            commas = b"," in cells[0] and name != "time"
            self._cells.setdefault((name, factor, commas), []).append((at, cells))

    def convert(self) -> None:
        """Put all that was gathered into the block."""
        for (name, factor, commas), parts in self._cells.items():
            cells = list(chain.from_iterable(cells for _, cells in parts))
            if name == "time":
                for at, some in _cut(times(cells), parts):
                    self._block.time[at] = some
                continue
            numbers = _floats(cells, commas)
            if name == "rank":
                for at, some in _cut(numbers, parts):
                    self._block.rank[at] = some.astype(np.int64)
                continue
            valid = numbers > 0 if factor == 0.0 or name == "total_steps" else np.ones(len(numbers), bool)
            if factor == 0.0:
                numbers = np.divide(1.0, numbers, out=np.zeros(len(numbers)), where=valid)
            elif factor != 1.0:
                numbers = apply(numbers, factor)  # type: ignore[arg-type, assignment]
            for (at, some), (_, known) in zip(_cut(numbers, parts), _cut(valid, parts), strict=True):
                self._block.put(name, at, some, known)


def _cut(numbers: Any, parts: list[tuple[slice, Cells]]) -> Iterator[tuple[slice, Any]]:
    done = 0
    for at, cells in parts:
        yield at, numbers[done : done + len(cells)]
        done += len(cells)


def _floats(cells: Cells, commas: bool) -> Floats:
    texts = pa.array(cells, pa.binary()).cast(pa.string())  # their encoding is checked all at once
    if commas:
        texts = pc.replace_substring(texts, ",", "")
    return texts.cast(pa.float64()).to_numpy()  # type: ignore[no-any-return]
