# ruff: noqa: E501 - log lines are as long as they are
"""Lines that a terminal wrapped at its width."""

from __future__ import annotations

import itertools
import random
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.lines.wrapped import broken_lines, likely_fold, wrap_width

LONG = [
    "[rank1]:[E1120 10:00:00.123456789 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000)"
    " ran for 600012 milliseconds before timing out.",
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "/opt/conda/envs/training/lib/python3.11/site-packages/torch/distributed/elastic/launch'
    '.py", line 133, in main',
    "[rank1]:     short()",
    "[rank1]: RuntimeError: /opt/conda/envs/training/lib/python3.11/site-packages/some/where/in/the/library"
    ".cpp:123 said no",
]


def folded(lines: list[str], width: int) -> bytes:
    pieces = [line[at : at + width] for line in lines for at in range(0, len(line), width)]
    return "".join(piece + "\n" for piece in pieces).encode()


def read(data: bytes, width: int | None) -> list[tuple[str, int]]:
    reader = LineReader("x", width=width)
    return [(line.text, line.number) for line in reader.feed(data) + reader.finish()]


@pytest.mark.parametrize("width", [80, 100])
def test_broken_lines_are_put_together(width: int) -> None:
    data = folded(LONG, width)
    assert wrap_width(data) == width
    found = read(data, width)
    assert [text for text, _ in found] == [text for text, _ in read("\n".join(LONG).encode(), None)]
    assert found[1][1] == 1 + -(-len(LONG[0]) // width)


@pytest.mark.parametrize(
    ("line_end", "encoding"), [("\n", "utf-8"), ("\r\n", "utf-8-sig"), ("\r\n", "utf-16")]
)
def test_any_cut_puts_the_same_together(line_end: str, encoding: str) -> None:
    data = folded(LONG, 80).decode().replace("\n", line_end).encode(encoding)
    assert wrap_width(data) == 80
    for size in (1, 7, 80, 81):
        reader = LineReader("x", width=80)
        lines = [line for at in range(0, len(data), size) for line in reader.feed(data[at : at + size])]
        assert [(line.text, line.number) for line in lines + reader.finish()] == read(folded(LONG, 80), 80)


@pytest.mark.parametrize("spaced", [False, True])
def test_lines_end_where_the_reader_ends_them(spaced: bool) -> None:
    """Next line, line separator and vertical tab count as ordinary characters."""
    text = "a run of\x85many\u2028words\x0b0123456789 and more of them"
    broken = [text.ljust(60, "x"), "goes on in a second line"]
    data = "\n".join(broken).encode()
    assert likely_fold(data) == 60
    assert [list(map(bytes.decode, line)) for line in broken_lines(data, 60, spaced)] == [
        [broken[0] + " " * spaced, broken[1]]
    ]
    reader = LineReader("x", width=60, spaced=spaced)
    assert [line.text for line in reader.feed(data) + reader.finish()] == [(" " * spaced).join(broken)]


def test_lines_that_a_terminal_filled_with_blanks_are_whole() -> None:
    data = b"".join(piece.ljust(80) + b"\n" for piece in folded(LONG, 80).splitlines())
    assert wrap_width(data) == 80
    assert [text.rstrip() for text, _ in read(data, 80)] == [text for text, _ in read(folded(LONG, 80), 80)]


MEGATRON = (
    " [2026-11-20 10:00:{:02d}] iteration {:8d}/  500000 | consumed samples: {:12d} | "
    "elapsed time per iteration (ms): 900.5 | lm loss: 2.000000E+00 | grad norm: 1.250"
)
TIMM = "Train: 0 [{:>4d}/1251 ({:>3d}%)]  Loss:  6.905 (6.91)  Time: 0.512s, 250.0/s  LR: 1.000e-06"


@pytest.mark.parametrize(
    "lines",
    [
        [MEGATRON.format(n % 60, n, n) for n in range(50)],
        [TIMM.format(n * 50, n * 4) for n in range(26)],
        [line for n in range(50) for line in (MEGATRON.format(n % 60, n, n), "time (ms)")],
        ["=" * 80, "title", "-" * 80, "text", "#" * 80, "more"],
        ["short lines", "of a log"] * 20,
        LONG,
        ["│ " + "x" * 76 + " │", "│ " + "y" * 76 + " │"] * 10,
    ],
    ids=["metrics", "metrics in columns", "metrics and timers", "rules", "short", "unbroken", "boxes"],
)
def test_lines_that_happen_to_be_equally_long_stay(lines: list[str]) -> None:
    assert wrap_width("\n".join(lines).encode()) is None


@given(st.lists(st.text("ab {\n\r|█", max_size=130), max_size=20))
@settings(max_examples=60, deadline=None)
def test_nothing_is_lost(lines: list[str]) -> None:
    data = "\n".join(lines).encode()
    together = "".join(itertools.chain.from_iterable(text for text, _ in read(data, 60)))
    apart = "".join(itertools.chain.from_iterable(text for text, _ in read(data, None)))
    assert sorted(together.replace(" ", "")) == sorted(apart.replace(" ", ""))


def test_the_lines_of_a_private_key_are_no_broken_ones() -> None:
    """All have the same width and break inside words; joined, they would not be masked as a key's."""
    key = "".join(random.Random(7).choices(string.ascii_letters + string.digits, k=4 * 64 + 22)) + "=="
    lines = ["the key of the loader:", *(key[at : at + 64] for at in range(0, len(key), 64))]
    data = "".join(f"{line}\n" for line in lines).encode()
    assert wrap_width(data) is None
    assert [text for text, _ in read(data, 64)] == lines
