"""Both readers of the table of samples, on recorded logs and on the lines of every framework."""

from __future__ import annotations

import random
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.samples.bulk import BulkReader
from stallwatch_rules.samples.table import Row, RowReader
from stallwatch_rules.scan.chunks import whole_lines

TESTS = Path(__file__).parent.parent.parent


def _contained(path: Path) -> bool:
    """True if a container runtime wrote the log: such logs are always read line by line."""
    reader = LineReader("x")
    reader.feed(path.read_bytes())
    return reader.contained


_ALL = sorted([*TESTS.glob("recordings/**/*.log"), *TESTS.glob("corpus/logs/*.log")])
LOGS = [path for path in _ALL if not _contained(path)]
TIMES = 9  # more often than a wording must be seen before it has a plan


def by_lines(data: bytes, rank: int | None) -> list[Row]:
    reader, rows = LineReader("x", rank).alone(None), RowReader("x")
    rows.feed(reader.feed(data) + reader.finish())
    return rows.finish()


def in_blocks(data: bytes, rank: int | None, size: int) -> list[Row]:
    rows = RowReader("x")
    bulk = BulkReader(LineReader("x", rank).alone(None), rows)
    for block in whole_lines(iter([data]), size):
        bulk.read(block)
    return rows.finish()


def comparable(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [tuple("nan" if value != value else value for value in row) for row in rows]


def varied(data: bytes, numbers: re.Pattern[bytes]) -> bytes:
    """The log several times, each time with other digits."""
    rnd = random.Random(0)

    def other(found: re.Match[bytes]) -> bytes:
        return b"".join(b"%d" % rnd.randrange(10) for _ in found[0])

    return b"".join(numbers.sub(other, data) + b"\n" for _ in range(TIMES))


FRACTIONS = re.compile(rb"(?<=\d\.)\d+")
LAST_DIGITS = re.compile(rb"(?<![-/:]\d)\d(?![-/:\dT])|(?<=:\d)\d(?=[., \]])")  # stamps stay stamps


@pytest.mark.parametrize("numbers", [FRACTIONS, LAST_DIGITS], ids=["fractions", "last digits"])
@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.relative_to(TESTS).as_posix())
def test_samples_of_recorded_logs(path: Path, numbers: re.Pattern[bytes]) -> None:
    data = path.read_bytes()
    many = varied(data, numbers)
    assert comparable(in_blocks(many, 3, 1 << 20)) == comparable(by_lines(many, 3))


def frameworks() -> list[str]:
    """The lines for which other tests hold the expected samples."""
    fields = runpy.run_path(str(TESTS / "rules/samples/test_sample_fields.py"))
    samples = runpy.run_path(str(TESTS / "rules/samples/test_samples.py"))
    lines = [line for line, *_ in fields["LINES"]]
    for name, value in samples.items():
        for mark in getattr(value, "pytestmark", []) if name.startswith("test_") else []:
            lines += [case[0] if isinstance(case, tuple) else case for case in mark.args[1]]
    return [line for line in lines if isinstance(line, str)]


@pytest.mark.parametrize("numbers", [FRACTIONS, LAST_DIGITS], ids=["fractions", "last digits"])
@pytest.mark.parametrize("end", ["\n", "\r", "\n2026-11-20 10:00:00,5 - x - INFO - words\n"])
def test_samples_of_each_framework(end: str, numbers: re.Pattern[bytes]) -> None:
    lines = frameworks()
    assert len(lines) > 100
    data = varied((end.join(lines) + "\n").encode(), numbers)
    expected = comparable(by_lines(data, None))
    assert len(expected) > 500
    for size in (2000, 1 << 20):
        assert comparable(in_blocks(data, None, size)) == expected
