"""Long lines: cut alike for every division of the bytes, with their end kept, and never whole in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stallwatch_rules.lines.long_lines import GOES_ON, HEAD, MAX_LINE, TAIL
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Line

ReadLines = Callable[..., list[Line]]


@pytest.mark.parametrize("excess", [-1, 0, 1, 70_000])
@pytest.mark.parametrize("step", [1000, 65_536, 10**9])
def test_long_line_is_truncated_the_same_for_any_chunks(excess: int, step: int) -> None:
    data = b"a" * (MAX_LINE + excess) + b"\nnext\n"
    reader = LineReader("train.log")
    lines = [line for at in range(0, len(data), step) for line in reader.feed(data[at : at + step])]
    kept = [MAX_LINE + excess] if excess <= 0 else [HEAD, len(GOES_ON) + TAIL]
    assert [len(line.text) for line in lines] == [*kept, 4]
    assert [line.number for line in lines] == [*[1 for _ in kept], 2]
    assert reader.cut == (1 if excess > 0 else 0)


@pytest.mark.parametrize("step", [100, 65_535, 65_537, 10**9])
def test_end_of_a_long_line_is_kept(step: int) -> None:
    numbers = " ".join(map(str, range(200_000)))
    data = f"[rank3]: weights {numbers} ValueError: no such thing\nnext\n".encode()
    reader = LineReader("train.log")
    lines = [line for at in range(0, len(data), step) for line in reader.feed(data[at : at + step])]
    assert [(line.text[:12], line.rank) for line in lines[:1]] == [("weights 0 1 ", 3)]
    assert lines[1].text.startswith(GOES_ON)
    assert lines[1].text.endswith(" 199999 ValueError: no such thing")
    assert (lines[1].rank, lines[1].number, len(lines)) == (3, 1, 3)


def test_end_of_a_long_record_is_kept(read_lines: ReadLines) -> None:
    part = "2026-11-20T10:00:00.5Z stderr P " + "x" * 16_000 + "\n"
    lines = read_lines((part * 9 + "2026-11-20T10:00:01.5Z stderr F ValueError: no\n").encode())
    assert [len(line.text) for line in lines] == [HEAD, len(GOES_ON) + TAIL]
    assert lines[1].text.endswith("xValueError: no")
    assert {line.number for line in lines} == {1}


def test_long_line_after_other_lines_is_truncated() -> None:
    reader = LineReader("train.log")
    assert len(reader.feed(b"short\n" + b"a" * (MAX_LINE + 5))) == 1
    assert [len(line.text) for line in reader.feed(b"\n")] == [HEAD, len(GOES_ON) + TAIL]
    assert reader.cut == 1


def test_memory_for_a_gigabyte_line_is_bounded() -> None:
    reader = LineReader("train.log")
    for _ in range(64):
        assert reader.feed(b"x" * 65_536) == []
        assert len(reader._held) <= MAX_LINE + 1
    assert sum(len(line.text) for line in reader.feed(b"\n")) == MAX_LINE + len(GOES_ON)


def test_truncation_loses_at_most_one_character(read_lines: ReadLines) -> None:
    for before in (b"", b"x", b"xx"):
        head, tail = read_lines(before + "停".encode() * MAX_LINE + b"\n")
        assert set(head.text.lstrip("x")) == {"停"}
        assert set(tail.text.removeprefix(GOES_ON)) == {"停"}


def test_long_command_of_a_launcher_is_read_quickly(catalogue: Catalogue) -> None:
    """Counting the characters took half a second per line; the end of the line is sufficient."""
    command = "['/usr/bin/python', '-u', 'train.py', " + "'--data', '/data/part.py', " * 100 + "'--fast']"
    text = f"CalledProcessError: Command '{command}' returned non-zero exit status 7."
    found = {rule: captures for _, rule, captures in Matcher(catalogue).match_text(text)}
    assert found["torchrun-child-failed"] == {"exitcode": "7"}
