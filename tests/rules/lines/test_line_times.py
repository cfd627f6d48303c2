"""The time of a line, its own or that of an earlier line, and clocks that contradict the order of lines."""

from __future__ import annotations

import pytest
from smallruns import finding, raised

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.lines.stamps import time_of_line
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.text.display import iso

STAMP = "[2026-05-11 09:16:03,519] [INFO] [stage3.py:186:__init__] Reduce bucket size 26214400\n"
OOM = raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
WATCHDOG = (
    "[rank1]:[E511 {clock} ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=90211, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800012"
    " milliseconds before timing out.\n"
)


def losses(count: int) -> str:
    return "".join(f"{{'loss': {2 - at / 100}, 'epoch': {at / 50:.2f}}}\n" for at in range(count))


def diagnosed(catalogue: Catalogue, matcher: Matcher, text: str) -> Diagnosis:
    reading = RunReading(catalogue, matcher)
    reader = LineReader("x")
    reading.feed(reader.feed(text.encode()) + reader.finish())
    return rendered(reading.diagnose())


@pytest.mark.parametrize(
    ("between", "time"),
    [
        ("", "2026-05-11T09:16:03.519"),
        (losses(2), "2026-05-11T09:16:03.519"),
        (losses(20), None),
        ("hello there\n" * 120, None),
        (losses(20) + STAMP.replace("09:16", "10:17"), "2026-05-11T10:17:03.519"),
    ],
)
def test_time_of_a_distant_line_is_not_that_of_the_failure(
    catalogue: Catalogue, matcher: Matcher, between: str, time: str | None
) -> None:
    diagnosis = diagnosed(catalogue, matcher, STAMP + between + OOM)
    assert diagnosis.primary is not None and diagnosis.primary.rule == "cuda-oom"
    assert diagnosis.primary.time == time
    assert finding(diagnosis, "cuda-oom").first.time == time
    unknown = diagnosed(catalogue, matcher, STAMP + between + raised("my.OddError: no")).unknown
    assert unknown[0].first.time == time


@pytest.mark.parametrize(("steps", "time"), [(2, "2026-05-11T09:16:03.519"), (20, None)])
def test_step_of_a_quiet_rank_is_that_of_the_run(
    catalogue: Catalogue, matcher: Matcher, steps: int, time: str | None
) -> None:
    found = "".join(f"[rank0]: {line}\n" for line in losses(steps).splitlines())
    failed = "".join(f"[rank5]: {line}\n" for line in OOM.splitlines())
    diagnosis = diagnosed(catalogue, matcher, f"[rank5]: {STAMP}{found}{failed}")
    assert diagnosis.primary is not None and (diagnosis.primary.rank, diagnosis.primary.time) == (5, time)


@pytest.mark.parametrize("lead", ["(raylet) ", "(raylet, ip=10.0.0.3) ", "(autoscaler +4s) ", ""])
def test_timestamp_after_a_prefix_of_ray_is_read(lead: str) -> None:
    line = f"{lead}[2026-05-11 21:38:02,118 E 31420 31420] (raylet) node_manager.cc:3193: 1 Workers"
    assert time_of_line(line) == time_of_line("2026-05-11 21:38:02.118")


@pytest.mark.parametrize("clock", ["01:41:11.551", "09:41:11.551"])
def test_last_line_with_a_skewed_clock_is_after_all_steps(
    catalogue: Catalogue, matcher: Matcher, clock: str
) -> None:
    steps = "".join(
        f"[2026-05-11 09:16:{at:02d},519] [INFO] [logging.py:1:log] step={at}, lr=[1e-5]\n"
        for at in range(1, 60)
    )
    timeout = finding(
        diagnosed(catalogue, matcher, steps + WATCHDOG.format(clock=clock)), "nccl-collective-timeout"
    )
    assert (timeout.harm, timeout.note) == ("fatal", "")


def test_steps_after_a_line_with_a_late_clock_count(catalogue: Catalogue, matcher: Matcher) -> None:
    rows = [
        f"[2026-05-11 09:16:{at:02d},519] [INFO] [logging.py:1:log] step={at}, lr=[1e-5]\n"
        for at in range(1, 60)
    ]
    text = "".join([*rows[:20], WATCHDOG.format(clock="01:41:11.551"), *rows[20:]])
    timeout = finding(diagnosed(catalogue, matcher, text), "nccl-collective-timeout")
    assert timeout.harm == "harmless" and "39 steps followed" in timeout.note


@pytest.mark.parametrize("above", [1, 30, 59])
def test_times_order_the_lines_of_named_ranks(catalogue: Catalogue, matcher: Matcher, above: int) -> None:
    rows = [
        f"[rank0]: [2026-05-11 09:{16 + at // 6}:{at % 6 * 10:02d},519] [INFO] [log] step={at}, lr=[1e-5]\n"
        for at in range(1, 60)
    ]
    text = "".join([*rows[:above], WATCHDOG.format(clock="09:20:05.551"), *rows[above:]])
    timeout = finding(diagnosed(catalogue, matcher, text), "nccl-collective-timeout")
    assert timeout.harm == "harmless" and "35 steps followed" in timeout.note


@pytest.mark.parametrize("key", ['"ts": {unix}.0', '"t": {unix}000', '"timestamp": "{iso}Z"'])
def test_stall_is_found_in_json_lines(catalogue: Catalogue, matcher: Matcher, key: str) -> None:
    def line(second: float, rest: str) -> str:
        when = iso(1795218992.0 + second, zoned=False)
        return "{" + key.format(unix=1795218992 + second, iso=when) + f", {rest}}}\n"

    steps = [line(2 * at, f'"step": {at}, "total_steps": 1000, "loss": 2.1') for at in range(1, 101)]
    ended = line(18_000, '"msg": "received SIGTERM, exiting"')
    diagnosis = diagnosed(catalogue, matcher, "".join([*steps, ended]))
    assert diagnosis.verdict == "stalled"
    assert diagnosis.progress.stalled_after_step == 100
