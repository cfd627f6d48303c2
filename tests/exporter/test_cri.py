"""The format of the copies preserves the output byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwatch_exporter.runs.copies import CriRecord, format_record, parse_record


def test_record_has_the_format_of_container_runtimes() -> None:
    record = CriRecord(1_795_221_432_123_456_789, "stdout", True, b"step 3 loss 0.63")
    assert format_record(record) == b"2026-11-21T00:37:12.123456789Z stdout F step 3 loss 0.63\n"


@given(
    st.integers(0, 4_000_000_000 * 10**9),
    st.sampled_from(["stdout", "stderr"]),
    st.booleans(),
    st.binary().map(lambda text: text.replace(b"\n", b"")),
)
def test_record_round_trips(time_ns: int, stream: str, full: bool, text: bytes) -> None:
    record = CriRecord(time_ns, stream, full, text)
    assert parse_record(format_record(record)) == record


def test_fewer_decimals_are_accepted() -> None:
    record = parse_record(b"2026-11-21T00:37:12.5Z stderr P bar\r")
    assert record is not None
    assert format_record(record).split(b" ")[0].endswith(b"12.500000000Z")
    assert record.printed == b"bar\r"


@pytest.mark.parametrize(
    "line", [b"", b"step 3", b"2026-11-21T00:37:12Z stdio F x", b"2026-11-21 stdout F x"]
)
def test_other_lines_are_not_records(line: bytes) -> None:
    assert parse_record(line) is None
