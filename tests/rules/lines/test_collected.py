"""Records of collectors and of loggers that write JSON: their text, time and rank."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwatch_rules.lines.containers import record_of
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
def test_text_of_a_record_becomes_the_line(record: dict[str, object]) -> None:
    assert [(line.text, line.time) for line in read(record)] == [("hello", AT)]


def test_rank_and_traceback_of_a_record_are_read() -> None:
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
def test_other_json_is_unchanged(record: dict[str, object]) -> None:
    assert [line.text for line in read(record)] == [json.dumps(record)]


@pytest.mark.parametrize("fields", [{"msg": "step failed"}, {}])
def test_step_field_does_not_hide_a_traceback(fields: dict[str, object]) -> None:
    record = {"level": "ERROR", "step": 20, **fields, "exc_info": "Traceback …\nValueError: no"}
    assert [line.text for line in read(record)] == [*fields.values(), "Traceback …", "ValueError: no"]


@pytest.mark.parametrize(
    "time",
    [
        '"²"',
        f'"{"9" * 400}"',
        f'"{"9" * 5000}"',
        "9" * 400,
        "9" * 5000,
        "-1",
        "true",
        "1e308",
        "1e999",
        "null",
    ],
    ids=range(10),
)
def test_invalid_time_loses_only_the_time(time: str) -> None:
    found = record_of(f'{{"time": {time}, "msg": "hello"}}')
    assert found is None or found[::3] == (None, "hello")


@pytest.mark.parametrize("rank", [True, False, -1, 1_000_000, 10**30, 3.0, "3"])
def test_invalid_rank_is_ignored(rank: object) -> None:
    (line,) = read({"level": "info", "msg": "hello", "rank": rank})
    assert (line.text, line.rank) == ("hello", None)


KEYS = [
    "time",
    "ts",
    "@timestamp",
    "level",
    "rank",
    "global_rank",
    "step",
    "msg",
    "log",
    "stream",
    "exc_info",
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=40)
    | st.text("0123456789٣²:-T.Z ", max_size=40)
    | st.from_regex(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{0,12})?(?:Z|[+-]\d\d:?\d\d)?", fullmatch=True)
)
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(max_size=3), SCALARS, max_size=2)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1))
def test_any_record_can_be_read(record: dict[str, object]) -> None:
    data = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")
    reader = LineReader("x")
    lines = [*reader.feed(data + b"\nlast\n"), *reader.finish()]
    assert "last" in [line.text for line in lines]  # the end of a partial record can follow it
    assert all(line.rank is None or 0 <= line.rank < 1_000_000 for line in lines)
