"""CSV holds the values of the rows."""

from __future__ import annotations

import csv
import math

import pytest

from stallwatch_exporter.sampling.files import csv_of
from stallwatch_rules.samples.table import COLUMNS, Row


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, ""),
        (0.5, "0.5"),
        (100.0, "100"),
        (85899345920.0, "85899345920"),
        (2.5e-7, "2.5e-07"),
        (-1e16, "-1e+16"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_are_written_exactly(number: float | None, text: str) -> None:
    row: Row = tuple(number if name == "loss" else None for name in COLUMNS)
    assert csv_of([row, row]).splitlines()[1].split(",")[COLUMNS.index("loss")] == text


@pytest.mark.parametrize(
    ("time", "text"),
    [(0.0, "1970-01-01 00:00:00.000000Z"), (1.5e-6, "1970-01-01 00:00:00.000002Z"), (math.nan, "")],
)
def test_times_are_written_exactly(time: float, text: str) -> None:
    row: Row = tuple(time if name == "time" else None for name in COLUMNS)
    assert csv_of([row]).split(",")[COLUMNS.index("time")] == text


def test_name_with_a_comma_is_quoted() -> None:
    row: Row = tuple({"file": 'run "1.0", a.log', "line": 3}.get(name) for name in COLUMNS)
    (cells,) = csv.reader([csv_of([row])])
    assert (cells[COLUMNS.index("file")], cells[COLUMNS.index("line")]) == ('run "1.0", a.log', "3")


def test_no_rows_produce_no_lines() -> None:
    assert csv_of([]) == ""
