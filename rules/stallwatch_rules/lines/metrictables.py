"""Tables of metrics as notebooks show them, copied from there: each row as a trainer prints it.

In a notebook transformers' Trainer draws a table in the place of its dictionaries (transformers 4.57,
``utils/notebook.py``): ``Step``, ``Training Loss``, perhaps ``Validation Loss`` and others. Copied, its cells
stand behind tabs; in an issue they often stand between bars.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from stallwatch_rules.records import Line
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.numbers import NUMBER

HEAD = "Training Loss"  #: a column that all of these tables have
_COUNTERS = {"Step": "step", "Epoch": "epoch"}
_NAMES = {**_COUNTERS, HEAD: "loss", "Validation Loss": "eval_loss"}
_CELLS = lazy(r" {0,40}\| {0,40}|\t| {2,}")
_COUNT = lazy(r"\d{1,15}(?:\.\d+)?")
_NUMBER = lazy(NUMBER)
_RULE = lazy(r"[\s|:+-]+")  # of a table in Markdown


class MetricTables:
    """Knows, of one source, which table its lines are in."""

    def __init__(self) -> None:
        self._names: list[str] = []  # of the columns of the table that is open

    def take(self, lines: Sequence[Line]) -> list[Line]:
        """The lines; rows of a table are spelled as the dictionaries that the trainer prints elsewhere."""
        return [self._row(line) if self._names or HEAD in line.text else line for line in lines]

    def _row(self, line: Line) -> Line:
        cells = _cells(line.text)
        if HEAD in cells and cells[0] in _COUNTERS:
            self._names = [_NAMES.get(cell, _named(cell)) for cell in cells]
            return line
        if _RULE.fullmatch(line.text):
            return line
        if len(cells) != len(self._names) or not _COUNT.fullmatch(cells[0]):
            self._names = []
            return line
        numbers = [
            f"'{name}': {cell.replace(',', '')}"
            for name, cell in zip(self._names, cells, strict=True)
            if _NUMBER.fullmatch(cell)
        ]
        return msgspec.structs.replace(line, text="{" + ", ".join(numbers) + "}")


def _cells(text: str) -> list[str]:
    return _CELLS.split(text.strip().removeprefix("|").removesuffix("|").strip())


def _named(cell: str) -> str:
    """``rewards / chosen`` and ``Kl`` as the dictionaries have them."""
    return re.sub(r"[^\w/]", "_", cell.lower().replace(" / ", "/"))
