"""Timestamps that loggers write at the start of a line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.lines.stamps import time_of_line
from stallwatch_rules.records import Line
from stallwatch_rules.report.phrases import clock
from stallwatch_rules.text.digest import parse_iso
from stallwatch_rules.text.display import iso

ReadLines = Callable[..., list[Line]]
NOV_20 = 1795218992.0  # 2026-11-20 23:56:32 UTC


@pytest.mark.parametrize(
    "text",
    [
        " [2026-11-20 23:56:32] iteration       10/     100 | consumed samples: 160 |",
        "[after dataloaders are built] datetime: 2026-11-20 23:56:32 ",
        "INFO 2026-11-20 23:56:32,000 launch.py:42] x",
        "[INFO] 2026-11-20 23:56:32,000 [run.py:1] x",
        "[WARNING|trainer.py:803] 2026-11-20 23:56:32,000 >> x",
        "[ERROR] 2026-11-20-23:56:32 (PID:4711, Device:0, RankID:-1) ERR02200 DIST call hccl api failed.",
        "[ERROR] HCCL(4711,python):2026-11-20-23:56:32.000.000 [task.cc:1] x",
        "2026/11/20 23:56:32 - mmengine - INFO - x",
        "2026-11-20 23:56:32.000000: W tensorflow/core/x.cc:1] x",
        "[2026-11-20 23:56:32 TP0] Decode batch",
        "2026-11-20 23:56:32 | INFO | root | x",
        "[titan] 2026-11-20 23:56:32,000 - root - INFO - step:  1",
        "[11/20/26 23:56:32] INFO     x     train.py:10",
        "26/11/20 23:56:32 INFO SparkContext: x",
        "[Fri Nov 20 23:56:32 2026] Out of memory: Killed process 4711 (python)",
        "Fri Nov 20 23:56:32 UTC 2026",
        "slurmstepd: error: *** JOB 88131 ON n1 CANCELLED AT 2026-11-20T23:56:32 ***",
        "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-20T23:56:32 DUE TO TIME LIMIT ***",
    ],
)
def test_timestamps_with_a_date_are_read(text: str) -> None:
    assert time_of_line(text) == NOV_20


def test_time_in_a_slurm_message_is_read(read_lines: ReadLines) -> None:
    cancelled = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-20T23:56:32 ***"
    data = f"[2026-11-20 16:00:00] step 1\n{cancelled}\nsrun: error: n1: x\n".encode()
    assert [line.time for line in read_lines(data)] == [NOV_20 - 28592, NOV_20, NOV_20]


@pytest.mark.parametrize(
    "text",
    [
        "I1120 23:56:32.000000 4711 socket.cpp:1] x",
        "[W1120 23:56:32.000000000 ProcessGroupNCCL.cpp:1] Warning: x",
        "ERROR 11-20 23:56:32 [core.py:400] EngineCore failed to start.",
        "11/20 23:56:32 - mmengine - INFO - x",
        "Nov 20 23:56:32 node7 kernel: x",
        "23:56:32-000000 INFO     x",
        "[23:56:32] INFO     x",
    ],
)
def test_year_of_a_timestamp_comes_from_neighbouring_lines(text: str) -> None:
    assert time_of_line(text) is None
    assert time_of_line(text, NOV_20 + 3600) == NOV_20


def test_new_year_between_two_lines_is_handled() -> None:
    new_year = 1798761600.0  # 2027-01-01
    assert time_of_line("W1231 23:59:59.000000 1 x.cpp:1] x", new_year + 5) == new_year - 1
    assert time_of_line("23:59:59 x", new_year + 5) == new_year - 1


@pytest.mark.parametrize(
    "text",
    [
        "W9999 99:99:99.5 1 x.cpp:1] x",
        "[rank0] step 5 at 2026-11-20 23:56:32",
        "epoch 2026-11-20",
        "12/100 [00:10<01:00, 1.2s/it]",
        "1:02:03 left",
        "Mit 20 23:56:32 x",
        "[05:10<01:00, 1.2s/it]",
    ],
)
def test_other_text_is_not_a_timestamp(text: str) -> None:
    assert time_of_line(text, NOV_20) is None


def test_year_is_shared_between_ranks() -> None:
    data = b"[W1120 23:56:30.0 a.cpp:1] x\n[2026-11-20 23:56:31] x\n[rank2]:[E1120 23:56:32.0 a.cpp:1] x\n"
    assert [line.time for line in LineReader("x").feed(data)] == [None, NOV_20 - 1, NOV_20]


def test_timestamp_of_journald_is_removed_and_read() -> None:
    data = (
        b"2026-11-20T23:56:31+0000 node7 python[4711]: step 1\n"
        b"Nov 20 23:56:32 node7 kernel: Out of memory: Killed process 4711 (python)\n"
    )
    assert [(line.text, line.time) for line in LineReader("x").feed(data)] == [
        ("step 1", NOV_20 - 1),
        ("Out of memory: Killed process 4711 (python)", NOV_20),
    ]


@pytest.mark.parametrize(
    ("text", "zoned"),
    [
        ("[2026-11-20 23:56:32,534] [INFO] x\nplain\n", False),
        ("2026-11-20T23:56:32.5+08:00 x\nplain\n", True),
        ("2026-11-20T23:56:32.5Z x\nplain\n", True),
        ("2026-11-20T10:00:00.5Z stderr F x\n2026-11-20T10:00:01.5Z stderr F plain\n", True),
    ],
)
def test_time_has_a_zone_only_if_the_log_has_one(text: str, zoned: bool) -> None:
    reader = LineReader("x")
    lines = reader.feed(text.encode())
    assert [line.zoned for line in lines] == [zoned, zoned]
    found = iso(lines[0].time, zoned=lines[0].zoned)
    assert found is not None
    assert found.endswith("Z") is zoned
    assert clock(found).endswith(" UTC") is zoned
    assert parse_iso(found) == lines[0].time


@pytest.mark.parametrize(
    ("raw", "time"),
    [
        ("[2026-11-20 23:56:32,534] [INFO] x", NOV_20 + 0.534),
        ("2026-11-20 23:56:32.123 | INFO | x", NOV_20 + 0.123),
        ("2026-11-20T23:56:32Z x", NOV_20),
        ("2026-11-21T07:56:32+08:00 x", NOV_20),
        ("2026-11-20T18:56:32-0500 x", NOV_20),
        ("[INFO|trainer.py:803] 2026-11-20 23:56:32,534 >> x", NOV_20 + 0.534),
        ("[INFO|2026-11-20 23:56:32] llamafactory.x:157 >> x", NOV_20),
        ("11/20/2026 23:56:32 - INFO - x", NOV_20),
        ("2026-13-40 99:99:99 x", None),
        ("20261120 x", None),
        ("step 5 at 2026-11-20 23:56:32", None),
    ],
)
def test_leading_timestamp_is_read_and_kept(read_lines: ReadLines, raw: str, time: float | None) -> None:
    (line,) = read_lines(raw.encode())
    assert (line.time, line.text) == (pytest.approx(time), raw)


@pytest.mark.parametrize(
    ("raw", "time", "zoned"),
    [
        ('{"ts": 1795218992.5, "step": 1, "loss": 2.1}', NOV_20 + 0.5, True),
        ('{"step": 1, "time": 1795218992, "loss": 2.1}', NOV_20, True),
        ('{"step": 1, "loss": 2.1, "t": 1795218992500}', NOV_20 + 0.5, True),
        ('{"_step": 1, "_timestamp": 1795218992.5}', NOV_20 + 0.5, True),
        ('{"ts":"1795218992","step":1}', NOV_20, True),
        ('{"timestamp": "2026-11-20T23:56:32Z", "step": 1}', NOV_20, True),
        ('{ "@timestamp": "2026-11-21T07:56:32.5+08:00", "step": 1}', NOV_20 + 0.5, True),
        ('{"step": 1, "asctime": "2026-11-20 23:56:32,500"}', NOV_20 + 0.5, False),
        ("{'time': '2026-11-20 23:56:32', 'step': 1}", NOV_20, False),
        ('{"val": {"time": 1}, "time": 1795218992}', NOV_20, True),
        ('{"epoch": 1, "time": 0.25, "data_time": 1795218992}', None, False),
        ('{"checkpoint": {"time": 1795218992}, "step": 1}', None, False),
        ('{"prompt": "When?", "response": "Then.", "timestamp": "2026-11-20 23:56:32"}', None, False),
        ('{"step": 1, "tokens": 1795218992, "timestamp": "yesterday"}', None, False),
    ],
)
def test_time_in_a_json_line_is_read(
    read_lines: ReadLines, raw: str, time: float | None, zoned: bool
) -> None:
    (line,) = read_lines(raw.encode())
    assert (line.time, line.zoned, line.text) == (time, zoned, raw)
    (ranked,) = read_lines(f"[rank3]: {raw}".encode())
    assert (ranked.time, ranked.zoned, ranked.rank) == (time, zoned, 3)


def test_lines_without_a_time_inherit_the_last_of_their_rank(read_lines: ReadLines) -> None:
    data = (
        b"before\n[2026-11-20 23:56:32] a\nb\n[rank1]: c\n[rank1]: [2026-11-20 23:56:40] d\n[rank1]: e\nf\n"
    )
    assert [line.time for line in read_lines(data)] == [
        None,
        NOV_20,
        NOV_20,
        None,
        NOV_20 + 8,
        NOV_20 + 8,
        NOV_20,
    ]


def test_live_lines_have_the_time_of_their_reading(read_lines: ReadLines) -> None:
    """A logger's timestamp has no time zone; the clock that measures other lines has one."""
    assert [line.time for line in read_lines(b"x\n[2026-11-20 23:56:32] y\n", time=5.0)] == [5.0, 5.0]
