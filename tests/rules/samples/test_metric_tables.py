"""Rows of a notebook's table are read like the lines that the trainer prints elsewhere."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.samples.table import COLUMNS, RowReader

TABS = """\
==((====))==  Unsloth: 1 GPU
 [20/60 02:31 < 02:40, 0.2 it/s, Epoch 0.5/1]
Step\tTraining Loss\tValidation Loss\trewards / chosen
10\t1.234500\tNo log\t0.25
20\t1,200.5\t2.5\tnan
Saving to out
30\t0.5\t0.5\t0.5
"""
BARS = """\
| Step | Training Loss |
|------|---------------|
| 1    | 0.500000      |
| 2    | nan           |
"""


def read(text: str, size: int = 10_000) -> list[tuple[object, ...]]:
    reader, rows = LineReader("x"), RowReader("x")
    data = text.encode()
    lines = [line for at in range(0, len(data), size) for line in reader.feed(data[at : at + size])]
    wanted = [COLUMNS.index(name) for name in ("line", "step", "loss", "eval_loss", "reward_chosen")]
    rows.feed([*lines, *reader.finish()])
    return [tuple(row[index] for index in wanted) for row in rows.finish()]


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_table_copied_from_a_notebook_is_read(size: int) -> None:
    assert read(TABS, size)[0] == (4, 10, 1.2345, None, 0.25)
    assert read(TABS, size)[1][:4] == (5, 20, 1200.5, 2.5)
    assert len(read(TABS, size)) == 2


def test_markdown_table_is_read() -> None:
    rows = read(BARS)
    assert [row[:2] for row in rows] == [(3, 1), (4, 2)]
    assert [str(row[2]) for row in rows] == ["0.5", "nan"]


def test_table_of_epochs_has_no_steps() -> None:
    assert read("Epoch\tTraining Loss\tValidation Loss\n1\t0.5\t0.25") == [(2, None, 0.5, 0.25, None)]


@pytest.mark.parametrize(
    "text",
    [
        "1\t0.5\n2\t0.25",
        "Step\tTime\n1\t0.5",
        "The column Training Loss\n1\t0.5",
        "Step\tTraining Loss\nsaved 1\t0.5",
    ],
)
def test_other_columns_are_not_losses(text: str) -> None:
    assert read(text) == []
