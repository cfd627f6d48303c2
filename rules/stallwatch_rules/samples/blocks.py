"""What was read of a block of a log's bytes: columns of numbers and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stallwatch_rules.samples.plans import Plan, stamp_time
from stallwatch_rules.samples.table import FIELDS, NEAR, BarSteps, Drawn
from stallwatch_rules.samples.templates import apply

NUMBERS = ("step", "total_steps", *FIELDS)
NO_RANK = -1

Floats = np.ndarray[Any, np.dtype[np.float64]]
Whole = np.ndarray[Any, np.dtype[np.int64]]
_ATTRIBUTES = ("place", "line", "rank", "time", "sample", "bare", "eval")


class Block:
    """The rows of one block, in columns; those without a sample only tell the time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.place = np.zeros(size, np.int64)  #: which segment of the block
        self.line = np.zeros(size, np.int64)
        self.rank = np.full(size, NO_RANK, np.int64)
        self.time = np.full(size, np.nan)
        self.sample = np.zeros(size, bool)
        self.bare = np.zeros(size, bool)
        self.eval = np.zeros(size, bool)
        self.numbers: dict[str, Floats] = {}  #: of those NUMBERS that any row has
        self.valid: dict[str, Any] = {}

    def put(self, name: str, at: int | slice | Whole, value: Any, valid: Any = True) -> None:
        """Set a number of one row or of several."""
        if name not in self.numbers:
            self.numbers[name] = np.zeros(self.size)
            self.valid[name] = np.zeros(self.size, bool)
        self.numbers[name][at] = value
        self.valid[name][at] = valid

    def taken(self, rows: Any) -> Block:
        """Only these rows, in this order."""
        other = Block(0)
        other.size = len(rows)
        for name in _ATTRIBUTES:
            setattr(other, name, getattr(self, name)[rows])
        other.numbers = {name: column[rows] for name, column in self.numbers.items()}
        other.valid = {name: column[rows] for name, column in self.valid.items()}
        return other


def merged(one: Block, two: Block) -> Block:
    """Both blocks' rows in the order of their places."""
    both = Block(one.size + two.size)
    for name in _ATTRIBUTES:
        setattr(both, name, np.concatenate([getattr(one, name), getattr(two, name)]))
    for block, at in ((one, slice(0, one.size)), (two, slice(one.size, both.size))):
        for name, column in block.numbers.items():
            both.put(name, at, column, block.valid[name])
    return both.taken(np.argsort(both.place, kind="stable"))


_SECONDS = 19  # characters up to the seconds
_DIGITS = [at for at in range(_SECONDS) if at not in (4, 7, 10, 13, 16)]
_MOST = 9  # digits of a fraction
_PADDING = b"\n" * (_SECONDS + _MOST + 4)
_ZERO, _POINT, _COMMA, _BLANK, _DASH, _PLUS, _COLON, _T, _Z = b"0., -+:TZ"


def times(stamps: Sequence[bytes]) -> Floats:
    """The times of stamps as ``stamp_time`` reads each; NaN for what is none."""
    lengths = np.fromiter(map(len, stamps), np.int64, len(stamps))
    ends = np.cumsum(lengths + 1) - 1
    found = _read_stamps(b"\n".join(stamps), ends - lengths)
    if found is not None and (found[1] == ends).all():
        return found[0]
    return np.array([np.nan if (t := stamp_time(stamp)) is None else t for stamp in stamps], np.float64)


def times_at(text: bytes, starts: Whole) -> Floats | None:
    """The times of the stamps that begin at these places; ``None`` if one of them is no such stamp."""
    found = _read_stamps(text, starts)
    if found is None:
        return None
    seconds, ends = found
    data = np.frombuffer(text + _PADDING, np.uint8)
    ends = ends + (data[ends] == _BLANK)
    zoned = (data[ends] == _Z) | (
        ((data[ends] == _PLUS) | (data[ends] == _DASH)) & (data[ends + 1] - _ZERO <= 9)
    )
    more = ((data[ends] == _POINT) | (data[ends] == _COMMA)) & (data[ends + 1] - _ZERO <= 9)
    return None if (zoned | more | (data[ends] - _ZERO <= 9)).any() else seconds


def _read_stamps(text: bytes, starts: Whole) -> tuple[Floats, Whole] | None:
    """The times, and where each stamp ends; ``None`` if one is of another kind."""
    data = np.frombuffer(text + _PADDING, np.uint8)
    stamps = data[starts[:, None] + np.arange(_SECONDS)]
    digits = stamps[:, _DIGITS] - _ZERO
    between = stamps[:, 10]
    dashes, colons = stamps[:, [4, 7]] == _DASH, stamps[:, [13, 16]] == _COLON
    if not ((digits <= 9).all() and dashes.all() and colons.all()):
        return None
    century, year, month, day, hour, minute, second = (
        digits[:, 0::2].astype(np.int64) * 10 + digits[:, 1::2]
    ).T  # fmt: skip
    valid = (
        (century == 20)
        & (month >= 1)
        & (month <= 12)
        & (day >= 1)
        & (day <= 31)
        & (hour < 24)
        & (minute < 60)
    )
    if not (valid & ((between == _BLANK) | (between == _T))).all():
        return None
    months = ((year + 30) * 12 + month - 1).astype("M8[M]")
    days = months.astype("M8[D]").astype(np.int64) + day - 1
    seconds = (days * 86400 + hour * 3600 + minute * 60 + second).astype(np.float64)
    return _with_fraction(data, starts + _SECONDS, seconds)


def _with_fraction(data: np.ndarray, ends: Whole, seconds: Floats) -> tuple[Floats, Whole] | None:
    goes_on = (data[ends] == _POINT) | (data[ends] == _COMMA)
    value, count = np.zeros(len(ends), np.int64), np.zeros(len(ends), np.int64)
    for at in range(1, _MOST + 2):
        digit = data[ends + at] - _ZERO
        goes_on = goes_on & (digit <= 9)
        if not goes_on.any():
            break
        value = np.where(goes_on, value * 10 + digit, value)
        count += goes_on
    if count.max(initial=0) > _MOST:
        return None
    return seconds + value / 10.0**count, ends + np.where(count, count + 1, 0)


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


def place_losses(block: Block, bars: BarSteps) -> Block:
    """Give the losses without a step that of the bar beside them, and leave out the bars in their own lines.

    ``bars`` are those before the block.
    """
    kept = np.ones(block.size, bool)
    none = np.zeros(block.size, bool)
    total, step, loss = (block.valid.get(name, none) for name in ("total_steps", "step", "loss"))
    drawn = block.bare & total & step
    lacking = loss & ~block.bare & ~step
    for number in np.unique(block.rank[drawn | lacking]).tolist():
        rank = None if number == NO_RANK else number
        rows = np.flatnonzero(drawn & (block.rank == number))
        before = bars.last.get(rank, Drawn(-NEAR - 1, 0, 0))
        lines = np.append(before.line, block.line[rows])
        steps = np.append(before.step, block.numbers["step"][rows] if len(rows) else [])
        totals = np.append(before.total, block.numbers["total_steps"][rows] if len(rows) else [])
        longest = np.maximum(np.maximum.accumulate(totals), bars.longest.get(rank, 0))
        wanted = np.flatnonzero(lacking & (block.rank == number))
        at = np.searchsorted(lines, block.line[wanted], side="right") - 1
        near = (block.line[wanted] - lines[at] <= NEAR) & (totals[at] > 0)
        beside = near & (totals[at] == longest[at])
        if beside.any():
            bars.trained.setdefault(rank, int(totals[at[beside][0]]))
        beside |= near & (totals[at] == bars.trained.get(rank, -1))
        if beside.any():
            block.put("step", wanted[beside], steps[at[beside]])
            block.put("total_steps", wanted[beside], totals[at[beside]])
            here = beside & (lines[at] == block.line[wanted])
            _join(block, wanted[here], rows[at[here] - 1])
            kept[rows[at[here] - 1]] = False
        if len(rows):
            bars.longest[rank] = int(longest[-1])
            bars.see(rank, Drawn(int(lines[-1]), int(steps[-1]), int(totals[-1])))
    return block if kept.all() else block.taken(np.flatnonzero(kept))


def _join(block: Block, losses: Whole, drawings: Whole) -> None:
    """Add to losses what the bars in their lines tell."""
    for name in [name for name in FIELDS if name in block.numbers]:
        told = block.valid[name][drawings] & ~block.valid[name][losses]
        block.put(name, losses[told], block.numbers[name][drawings[told]])
