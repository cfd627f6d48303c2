"""Columns of a block from what the plans' expressions found: numbers and times, all of a kind at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stallwatch_rules.samples.blocks import Block, Floats
from stallwatch_rules.samples.plans import Plan, apply, stamp_time

Cells = Sequence[bytes]
_SECONDS = 19  # characters of 2026-11-20 23:56:32
_LONGEST = 29  # characters of such a stamp with a fraction that nine digits hold
_SINCE, _UNTIL = 946684800, 4102444800  # stamps are of this century


class Columns:
    """Gathers the cells of all plans, so that each column is converted once."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._cells: dict[tuple[str, float, bytes], list[tuple[slice, Cells]]] = {}

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
            kind = cells[0][_SECONDS : _SECONDS + 1] if name == "time" else b"," if b"," in cells[0] else b""
            self._cells.setdefault((name, factor, kind), []).append((at, cells))

    def convert(self) -> None:
        """Put all that was gathered into the block."""
        for (name, factor, kind), parts in self._cells.items():
            cells = list(chain.from_iterable(cells for _, cells in parts))
            if name == "time":
                for at, some in _cut(times(cells), parts):
                    self._block.time[at] = some
                continue
            numbers = _floats(cells, kind == b",")
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
    texts = pa.array(cells, pa.string())
    if commas:
        texts = pc.replace_substring(texts, ",", "")
    return texts.cast(pa.float64()).to_numpy()  # type: ignore[no-any-return]


def times(stamps: Cells) -> Floats:
    """The times of stamps of one kind, as ``stamp_time`` reads each; NaN for what is none."""
    try:
        found = _usual_times(stamps)
    except pa.ArrowInvalid:
        found = None
    if found is not None:
        return found
    return np.array([np.nan if (t := stamp_time(stamp)) is None else t for stamp in stamps])


def _usual_times(stamps: Cells) -> Floats | None:
    texts = pa.array(stamps, pa.string())
    length = pc.binary_length(texts).to_numpy()
    seconds = pc.utf8_slice_codeunits(texts, 0, _SECONDS).cast(pa.timestamp("s")).cast(pa.int64()).to_numpy()
    if not ((seconds >= _SINCE) & (seconds < _UNTIL)).all():
        return None
    if (length == _SECONDS).all():
        return seconds.astype(np.float64)  # type: ignore[no-any-return]
    if stamps[0][_SECONDS] not in b".," or length.min() <= _SECONDS + 1 or length.max() > _LONGEST:
        return None
    digits = pc.utf8_slice_codeunits(texts, _SECONDS + 1, _LONGEST)
    if not pc.all(pc.ascii_is_decimal(digits)).as_py():
        return None
    scale = 10.0 ** (length - (_SECONDS + 1))
    return seconds + digits.cast(pa.int64()).to_numpy() / scale  # type: ignore[no-any-return]
