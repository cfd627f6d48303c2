"""Records of containers in CRI's format: their times, and lines over several records."""

from __future__ import annotations

from collections.abc import Callable

from stallwatch_rules.records import Line

ReadLines = Callable[..., list[Line]]
LineTexts = Callable[[bytes], list[str]]

NOV_20 = 1795218992.0  # 2026-11-20 23:56:32 UTC


def cri(stream: str, flag: str, text: str, second: int = 32) -> bytes:
    return f"2026-11-20T23:56:{second}.5Z {stream} {flag} {text}\n".encode()


def test_container_records_have_time_and_text(read_lines: ReadLines) -> None:
    (line,) = read_lines(cri("stderr", "F", "[rank3]: hello"))
    assert line == Line("hello", "train.log", 1, 3, NOV_20 + 0.5, zoned=True)


def test_time_of_a_record_has_precedence(read_lines: ReadLines) -> None:
    assert read_lines(cri("stdout", "F", "x"), time=5.0)[0].time == NOV_20 + 0.5


def test_partial_records_of_a_stream_are_joined(read_lines: ReadLines) -> None:
    data = cri("stdout", "P", "hal") + cri("stderr", "F", "err", 33) + cri("stdout", "F", "lo", 34)
    assert [(line.text, line.number, line.time) for line in read_lines(data)] == [
        ("err", 2, NOV_20 + 1.5),
        ("hallo", 1, NOV_20 + 0.5),
    ]


def test_plain_line_is_not_joined_with_a_record(read_lines: ReadLines) -> None:
    data = cri("stdout", "P", "hal") + b"[x] plain\n" + cri("stdout", "F", "lo", 34)
    assert [(line.text, line.time) for line in read_lines(data)] == [
        ("[x] plain", None),
        ("hallo", NOV_20 + 0.5),
    ]


def test_redrawn_records_are_separate_lines(read_lines: ReadLines) -> None:
    data = cri("stderr", "P", "1%\r") + cri("stderr", "P", "2%\r", 33) + cri("stderr", "F", "3%", 34)
    assert [(line.text, line.number) for line in read_lines(data)] == [("1%", 1), ("2%", 2), ("3%", 3)]


def test_redraws_inside_one_record_share_its_time(read_lines: ReadLines) -> None:
    assert [(line.text, line.time) for line in read_lines(cri("stderr", "F", "1%\r2%"))] == [
        ("1%", NOV_20 + 0.5),
        ("2%", NOV_20 + 0.5),
    ]


def test_unfinished_record_at_the_end_is_returned(line_texts: LineTexts) -> None:
    assert line_texts(cri("stdout", "P", "Password: ")) == ["Password: "]
