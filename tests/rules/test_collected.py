"""Records of collectors and of loggers that write JSON: their text, time and rank."""

from __future__ import annotations

import json

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.records import Line

AT = 1795168801.0  # 2026-11-20 10:00:01 UTC


def read(record: dict[str, object]) -> list[Line]:
    reader = LineReader("x")
    return [*reader.feed(json.dumps(record).encode() + b"\n"), *reader.finish()]


@pytest.mark.parametrize(
    "record",
    [
        {"ts": AT, "level": "info", "msg": "hello"},
        {"@timestamp": "2026-11-20T10:00:01Z", "message": "hello\n"},
        {"log": "hello", "kubernetes": {"pod_name": "a"}, "time": "2026-11-20T10:00:01Z"},
        {"textPayload": "hello", "severity": "ERROR", "timestamp": "2026-11-20T10:00:01Z"},
        {"line": "hello", "timestamp": str(int(AT * 1e9))},
        {"__REALTIME_TIMESTAMP": str(int(AT * 1e6)), "MESSAGE": "hello"},
    ],
)
def test_the_text_of_a_record_is_the_line(record: dict[str, object]) -> None:
    assert [(line.text, line.time) for line in read(record)] == [("hello", AT)]


def test_a_record_names_its_rank_and_holds_a_traceback() -> None:
    record = {
        "level": "error",
        "rank": 3,
        "message": "step failed",
        "exc_info": "Traceback …\nValueError: no",
    }
    assert [(line.text, line.rank) for line in read(record)] == [
        ("step failed", 3),
        ("Traceback …", 3),
        ("ValueError: no", 3),
    ]


@pytest.mark.parametrize(
    "record",
    [
        {"step": 3, "loss": 0.5, "message": "saved", "time": "2026-11-20T10:00:01Z"},
        {"message": "a data set's"},
        {"messages": "x", "prompt": "y", "message": "z", "time": 3},
        {"time": AT, "msg": {"a": 1}},
        {"time": AT, "text": "hello"},
    ],
)
def test_what_is_no_log_record_stays_as_it_is(record: dict[str, object]) -> None:
    assert [line.text for line in read(record)] == [json.dumps(record)]
