"""Lines from bytes: the same for every division of the bytes, also for redrawn and unfinished lines."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.records import Line

ReadLines = Callable[..., list[Line]]
LineTexts = Callable[[bytes], list[str]]

PIECES = [
    b"\n",
    b"\r",
    b"\r\n",
    b"plain words",
    b"  5%|# | 1/20 [00:01<00:19,  1.00s/it]",
    b"[rank3]: Traceback (most recent call last):",
    b'[default1]:[rank9]:   File "train.py", line 3',
    b"2026-11-21T00:37:12.5Z stdout P half",
    b"2026-11-21T00:37:13.5Z stdout F whole",
    b"2026-11-21T00:37:14.5Z stderr P 50%\r",
    b"[2026-11-20 23:56:32,534] [INFO] [config.py:1] x",
    "训练停止".encode(),
    "训练停止".encode("gbk"),
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\x1b[36mcolour\x1b[0m",
    b"\0\0",
    b"worker-1: [rank2]: x",
    b" ",
    b"x" * 300,
    b"1: labelled\n0: labelled\n" * 7,
    b'{"log":"half","stream":"stderr","time":"2026-11-20T23:56:32Z"}',
    b'{"log":" of it\\r5%\\n","stream":"stderr","time":"2026-11-20T23:56:33Z"}',
    b"[rank2]:[E1120 23:56:34.0 a.cpp:1] x",
    b"worker-1: [2026-11-20 23:56:32] x\nworker-1: y",
]


@given(st.lists(st.sampled_from(PIECES), max_size=30), st.lists(st.integers(0, 2000), max_size=8))
@settings(max_examples=300, deadline=None)
def test_lines_do_not_depend_on_chunks(read_lines: ReadLines, pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(pieces)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = LineReader("train.log")
    lines: list[Line] = []
    for start, end in itertools.pairwise(bounds):
        lines += reader.feed(data[start:end])
    assert lines + reader.finish() == read_lines(data)


@given(st.lists(st.sampled_from(PIECES), max_size=12))
@settings(max_examples=50, deadline=None)
def test_byte_by_byte_gives_the_same_lines(read_lines: ReadLines, pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    reader = LineReader("train.log")
    lines = [line for at in range(len(data)) for line in reader.feed(data[at : at + 1])]
    assert lines + reader.finish() == read_lines(data)


def test_partial_last_line_is_held_until_its_end() -> None:
    reader = LineReader("train.log")
    assert reader.feed(b"one\ntw") == [Line("one", "train.log", 1)]
    assert reader.feed(b"o") == []
    assert reader.feed(b"\n") == [Line("two", "train.log", 2)]
    assert reader.feed(b"rest") == []
    assert reader.finish() == [Line("rest", "train.log", 3)]
    assert (reader.lines, reader.bytes) == (3, 12)


def test_redrawn_segments_share_a_line_number() -> None:
    reader = LineReader("train.log")
    assert [(line.text, line.number) for line in reader.feed(b"1%\r2%\r")] == [("1%", 1), ("2%", 1)]
    assert [(line.text, line.number) for line in reader.feed(b"\n\nend\n")] == [("end", 3)]


def test_text_after_a_progress_bar_is_a_separate_line(read_lines: ReadLines) -> None:
    bar = "  3%|▎         | 3/100 [00:03<01:37,  1.00s/it]"
    glued = f"{bar}Traceback (most recent call last):\n{bar}[rank1]: ValueError: no\n".encode()
    assert [(line.text, line.rank) for line in read_lines(glued)] == [
        (bar, None),
        ("Traceback (most recent call last):", None),
        (bar, None),
        ("ValueError: no", 1),
    ]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("KeyErrorKeyError: : 'text'", "KeyError: 'text'"),
        ("torch.OutOfMemoryErrortorch.OutOfMemoryError: : no", "torch.OutOfMemoryError: no"),
        ("ValueErrorValueErrorValueError: : : odd", "ValueError: odd"),
        ("KeyErrorKeyError: : 'text''text'", "KeyError: 'text'"),
        ("KeyErrorValueError: : odd", "KeyErrorValueError: : odd"),
        ("ValueError: : odd", "ValueError: : odd"),
        ("a ratio of 3: : 4", "a ratio of 3: : 4"),
    ],
)
def test_exception_written_by_several_processes_is_one(
    written: str, read: str, read_lines: ReadLines
) -> None:
    assert [line.text for line in read_lines(f"{written}\n".encode())] == [read]


def test_line_written_by_two_ranks_is_split(read_lines: ReadLines) -> None:
    data = b'[rank0]:   File "train.py", li[rank1]: ValueError: no\nhello[default2]:there\n'
    found = read_lines(data + b"byeTraceback (most recent call last):\n")
    assert [(line.text, line.rank) for line in found] == [
        ('  File "train.py", li', 0),
        ("ValueError: no", 1),
        ("hello", None),
        ("there", 2),
        ("bye", None),
        ("Traceback (most recent call last):", None),
    ]


@pytest.mark.parametrize("prefix", ["[default4]:", "[rank4]:", "[default4]:[rank4]:", "[default4]: "])
def test_traceback_after_a_prefix_belongs_to_its_rank(prefix: str, read_lines: ReadLines) -> None:
    found = read_lines(f"{prefix}Traceback (most recent call last):\n".encode())
    assert [(line.text, line.rank) for line in found] == [("Traceback (most recent call last):", 4)]


def test_message_after_a_bar_with_a_postfix_is_separate(line_texts: LineTexts) -> None:
    bar = "Epoch 1: 100%|██████████| 150/150 [00:04<00:00, 30.55it/s, train_loss=2.22e-6]"
    message = "`Trainer.fit` stopped: `max_epochs=2` reached."
    assert line_texts(f"{bar}{message}\r{bar}".encode()) == [bar, message, bar]
    beside = (
        "100/150 [00:04<00:00, 30.55it/s, loss=2]Epoch 1:  67%|█ | 101/150 [00:04<00:00, 30.55it/s, loss=2]"
    )
    assert line_texts(beside.encode()) == [beside]


def test_bar_with_a_postfix_is_not_split(line_texts: LineTexts) -> None:
    bar = "Epoch 0:  12%|█▏        | 12/100 [00:10<01:00,  1.20it/s, loss=0.5, v_num=0]"
    assert line_texts(bar.encode()) == [bar]
    behind = f"{bar}examples are packed"
    assert line_texts(behind.encode()) == [behind]


def test_unchanged_bar_is_read_once() -> None:
    reader = LineReader("train.log")
    assert reader.feed(b"\r 29/100", 10.0) == []
    assert [line.text for line in reader.feed(b"\r 30/100", 11.0)] == [" 29/100"]
    assert reader.idle(10.9) == []
    assert reader.idle(11.5) == [Line(" 30/100", "train.log", 1, None, 11.0, zoned=True)]
    assert reader.idle(99.0) == []
    assert [line.text for line in reader.feed(b"\r 31/100\rdone\n", 50.0)] == [" 31/100", "done"]
    assert reader.feed(b"\r 32/100", 51.0) == []
    assert len(reader.idle(60.0)) == 1
    assert [(line.text, line.number) for line in reader.feed(b"Killed\n", 61.0)] == [("Killed", 2)]
    assert reader.finish(70.0) == []


def test_unfinished_line_keeps_its_time() -> None:
    reader = LineReader("train.log")
    reader.feed(b"one\nloading", 10.0)
    assert reader.idle(99.0) == []
    assert [line.text for line in reader.feed(b" done\nste", 99.0)] == ["loading done"]
    assert reader.finish(200.0) == [Line("ste", "train.log", 3, None, 99.0, zoned=True)]
