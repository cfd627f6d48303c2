"""Blocks of a log's bytes, and what was read of one: columns of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stallwatch_rules.samples.table import FIELDS

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


def blocks(data: Iterator[bytes], size: int) -> Iterator[bytes]:
    """A source's bytes in blocks of whole lines."""
    held: list[bytes] = []
    length = 0
    for chunk in data:
        length += len(chunk)
        end = chunk.rfind(b"\n") + 1 if length >= size else 0
        if end:
            yield b"".join([*held, chunk[:end]])
            held, length = [chunk[end:]], len(chunk) - end
        else:
            held.append(chunk)
    if length:
        yield b"".join(held) + b"\n"
