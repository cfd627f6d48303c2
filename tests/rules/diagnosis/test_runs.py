"""Logs of different runs in one diagnosis."""

from __future__ import annotations

import pytest

from stallwatch_rules.diagnosis.runs import runs_note
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import render, rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading


def steps(first: int, last: int, total: int | None = None, hour: int = 9) -> str:
    of = f"/{total}" if total else ""
    return "".join(
        f"2026-05-02 {hour:02d}:{n // 60 % 60:02d}:{n % 60:02d},000 INFO step {n}{of} loss 1.5\n"
        for n in range(first, last)
    )


def note(catalogue: Catalogue, matcher: Matcher, files: dict[str, str]) -> str:
    reading = RunReading(catalogue, matcher)
    for name, text in files.items():
        rank = int(name[4]) if name.startswith("rank") else None
        reader = LineReader(name, rank)
        reading.feed([*reader.feed(text.encode()), *reader.finish()])
    found = render(runs_note(reading.streams))
    assert (found in rendered(reading.diagnose()).notes) is bool(found)
    return found


@pytest.mark.parametrize(
    ("files", "sign"),
    [
        (
            {"slurm-12345.out": steps(1, 20), "slurm-12346.out": steps(1, 20)},
            "different jobs (12345 and 12346)",
        ),
        ({"a.log": steps(1, 20, 100), "b.log": steps(1, 20, 500)}, "100 and 500 total steps"),
        ({"a.log": steps(1, 20), "b.log": steps(1, 20, hour=11)}, "consecutive runs"),
        ({"b.log": steps(1, 20), "a.log": steps(5, 20, hour=7)}, "consecutive runs"),
    ],
)
def test_logs_of_different_runs_are_reported(
    catalogue: Catalogue, matcher: Matcher, files: dict[str, str], sign: str
) -> None:
    found = note(catalogue, matcher, files)
    assert sign in found
    assert all(name in found for name in files)


@pytest.mark.parametrize(
    "files",
    [
        {"rank0.log": steps(1, 20), "rank1.log": steps(1, 20, hour=10)},  # a rank's clock
        {"node0.log": steps(1, 20, 100), "node1.log": steps(1, 20, 100)},
        {"slurm-12345.out": steps(1, 20), "slurm-12345.err": steps(1, 20)},
        {"attempt_0/0/stdout.log": steps(1, 20), "attempt_1/0/stdout.log": steps(10, 30, hour=10)},
        {"train.log.1": steps(1, 20), "train.log": steps(20, 40, hour=10)},
        {"part1.log": steps(1, 20), "part2.log": steps(20, 40, hour=10)},  # it went on
        {"a.log": steps(1, 20), "notes.txt": "step aside\n"},
    ],
)
def test_logs_of_one_run_are_not_reported(
    catalogue: Catalogue, matcher: Matcher, files: dict[str, str]
) -> None:
    assert note(catalogue, matcher, files) == ""
