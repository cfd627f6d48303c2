"""Records of Docker, and stamped copies of kubectl and of continuous integration."""

from __future__ import annotations

import json

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.records import Line

NOV_20 = 1795218992.0  # 2026-11-20 23:56:32 UTC


def read(data: bytes) -> list[Line]:
    reader = LineReader("x")
    return reader.feed(data) + reader.finish()


def docker(text: str, stream: str = "stderr", second: int = 32, **more: object) -> bytes:
    stamp = f"2026-11-20T23:56:{second}.5Z"
    return json.dumps({"log": text, "stream": stream, **more, "time": stamp}).encode() + b"\n"


def test_record_has_time_and_text() -> None:
    assert read(docker("[rank3]: ValueError: \u505c\n")) == [
        Line("ValueError: 停", "x", 1, 3, NOV_20 + 0.5, zoned=True)
    ]
    assert read(docker("a\n", attrs={"tag": "b"}))[0].text == "a"


def test_line_in_several_records_is_joined() -> None:
    data = docker("hal") + docker("other\n", "stdout", 33) + docker("lo\n", second=34)
    assert [(line.text, line.number, line.time) for line in read(data)] == [
        ("other", 2, NOV_20 + 1.5),
        ("hallo", 1, NOV_20 + 0.5),
    ]


def test_redraws_inside_a_record_are_separate_lines() -> None:
    assert [line.text for line in read(docker("\r1%\r2%\n"))] == ["1%", "2%"]
    assert [line.text for line in read(docker("1%\r", second=31) + docker("2%\r") + docker("3%\r\n"))] == [
        "1%",
        "2%",
        "3%",
    ]


def test_unfinished_record_is_returned_at_the_end() -> None:
    assert [line.text for line in read(docker("Password: "))] == ["Password: "]


def test_partial_flag_of_the_collector_is_respected() -> None:
    data = docker("hal", _p="P") + docker("lo", _p="F") + docker("next", _p="F")
    assert [line.text for line in read(data)] == ["hallo", "next"]


@pytest.mark.parametrize(
    "text",
    [
        '{"log": "loss", "step": 5}',
        '{"log": 5, "stream": "a", "time": "b"}',
        '{"log": "a"}',
        '{"log": "a", "stream": "stderr", "time": "2026-11-20T23:56:32Z"',
    ],
)
def test_other_objects_are_plain_lines(text: str) -> None:
    assert [line.text for line in read(text.encode())] == [text]


def test_timestamps_of_copied_lines_are_read() -> None:
    data = (
        b"2026-11-20T23:56:32.500000000Z [rank1]: ValueError: no\n"
        b"2026-11-20T23:56:33.5000000Z ##[group]Run make\n"
        b"2026-11-20T23:56:34.500000Z 01O $ make\n"
        b"2026-11-20T23:56:35.500000Z  INFO its own logger\n"
    )
    assert [(line.text, line.time) for line in read(data)] == [
        ("ValueError: no", NOV_20 + 0.5),
        ("##[group]Run make", NOV_20 + 1.5),
        ("$ make", NOV_20 + 2.5),
        ("2026-11-20T23:56:35.500000Z  INFO its own logger", NOV_20 + 3.5),
    ]
