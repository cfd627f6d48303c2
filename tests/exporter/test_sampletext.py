"""CSV lines written by Python equal those written by pyarrow."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwatch_exporter.sampling.files import HEADER, number_text, row_text
from stallwatch_rules.samples.table import FIELDS, Row

numbers = st.none() | st.floats() | st.integers(-(10**12), 10**12).map(float)
whole = st.none() | st.integers(0, 2**31 - 1)
times = st.none() | st.floats(0, 4e9)
rows = st.tuples(
    whole,
    times,
    whole,
    whole,
    st.sampled_from(["train", "eval"]),
    st.text(st.characters(codec="utf-8"), max_size=8),
    whole,
    *[numbers] * len(FIELDS),
)


@settings(max_examples=300, deadline=None)
@given(row=rows)
def test_a_row_as_pyarrow_writes_it(row: Row) -> None:
    arrow_csv = pytest.importorskip("pyarrow.csv")
    from stallwatch_exporter.sampling.tables import table_of

    out = io.BytesIO()
    options = arrow_csv.WriteOptions(quoting_style="needed", quoting_header="none")
    arrow_csv.write_csv(table_of([row]), out, options)
    assert out.getvalue().decode() == HEADER + row_text(row)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.5, "0.5"),
        (100.0, "100"),
        (85899345920, "8.589934592e+10"),
        (1e-6, "0.000001"),
        (2.5e-7, "2.5e-7"),
        (-1e16, "-1e+16"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers(number: float, text: str) -> None:
    assert number_text(number) == text
    if text:
        assert str(float(text)) == str(float(number or 0))
