"""Logs without a time zone, in nights in which an hour is skipped or occurs twice."""

from __future__ import annotations

from calendar import timegm
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import pytest

from stallwatch_rules.lines.stamps import clock_set_back, elapsed, unix_time
from stallwatch_rules.records import Diagnosis

Diagnose = Callable[..., Diagnosis]
SPRING, AUTUMN = datetime(2026, 3, 29, 2), datetime(2026, 10, 25, 3)  # changes of the clock in Berlin
ALIVE = "heartbeat: worker alive"


def log(begin: datetime, jump: float, steps: int = 120, after: Sequence[float] = ()) -> str:
    """Return steps of ten seconds, then a line after each of these seconds; `jump` moves the clock."""
    hour = SPRING if jump > 0 else AUTUMN
    now, lines, waits = begin, [], [10.0] * steps + list(after)
    is_set = False
    for number, wait in enumerate(waits, start=1):
        now += timedelta(seconds=wait)
        if not is_set and now >= hour:
            now, is_set = now + timedelta(seconds=jump), True
        text = f"step {number}/1000 loss {2 / number:.4f}" if number <= steps else ALIVE
        lines.append(f"{now:%Y-%m-%d %H:%M:%S},000 - INFO - {text}")
    assert is_set
    return "\n".join(lines) + "\n"


NIGHTS = pytest.mark.parametrize(
    ("hour", "jump"), [(SPRING, 3600.0), (AUTUMN, -3600.0)], ids=["spring", "autumn"]
)


@NIGHTS
@pytest.mark.parametrize("minutes", [5, 15, 19.9], ids=["early", "late", "at the end"])
def test_clock_change_during_training_is_not_a_stall(
    diagnose: Diagnose, hour: datetime, jump: float, minutes: float
) -> None:
    found = diagnose(log(hour - timedelta(minutes=minutes), jump))
    assert found.verdict == "unfinished" and found.findings == []


@NIGHTS
def test_clock_change_after_the_last_step_is_not_a_stall(
    diagnose: Diagnose, hour: datetime, jump: float
) -> None:
    found = diagnose(log(hour - timedelta(minutes=20, seconds=5), jump, after=[10, 5]))
    assert found.verdict == "unfinished" and found.findings == []


@NIGHTS
@pytest.mark.parametrize("minutes", [15, 25], ids=["while it trains", "while it hangs"])
def test_hang_during_a_clock_change_is_found(
    diagnose: Diagnose, hour: datetime, jump: float, minutes: float
) -> None:
    found = diagnose(log(hour - timedelta(minutes=minutes), jump, after=[600, 600, 600]))
    assert found.verdict == "stalled" and found.progress.stalled_after_step == 120


def moment(text: str) -> float:
    found = unix_time(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("earlier", "later", "seconds"),
    [
        ("2026-03-29 01:59:50", "2026-03-29 03:00:05", 15),  # Berlin
        ("2026-03-29 00:59:50", "2026-03-29 02:00:05", 15),  # London
        ("2026-03-08 01:59:50", "2026-03-08 03:00:05", 15),  # New York
        ("2026-10-04 01:59:50", "2026-10-04 03:00:05", 15),  # Sydney
        ("2026-03-29 01:00:00", "2026-03-29 05:00:00", 3 * 3600),
        ("2026-03-29 02:00:05", "2026-03-29 03:00:05", 3600),  # a line within the hour: it was not skipped
        ("2026-03-28 01:59:50", "2026-03-28 03:00:05", 3615),  # a Saturday
        ("2026-03-22 01:59:50", "2026-03-22 03:00:05", 3615),  # not the last Sunday
        ("2026-10-25 02:59:50", "2026-10-25 02:00:05", 15),
        ("2026-11-01 01:59:50", "2026-11-01 01:00:05", 15),
        ("2026-04-05 02:30:00", "2026-04-05 02:10:00", 2400),
        ("2026-10-25 02:59:50", "2026-10-25 01:00:05", -7185),  # two hours: set by hand
        ("2026-10-24 02:59:50", "2026-10-24 02:00:05", -3585),
    ],
)
def test_elapsed_time_accounts_for_clock_changes(earlier: str, later: str, seconds: float) -> None:
    assert elapsed(moment(earlier), moment(later)) == seconds


def test_time_that_no_calendar_has_is_subtracted_as_it_is() -> None:
    assert elapsed(0.0, 1e300) == 1e300 and clock_set_back(1e18 + 1000, 1e18) == 0.0
    assert moment("2026-03-29 01:00:00") == timegm((2026, 3, 29, 1, 0, 0))


def test_times_of_a_container_runtime_have_a_zone(diagnose: Diagnose) -> None:
    """UTC skips no hour, so the pause was a hang."""
    begin = SPRING - timedelta(minutes=20, seconds=5)
    steps = [begin + timedelta(seconds=10 * number) for number in range(120)]
    lines = [
        f"{at:%Y-%m-%dT%H:%M:%S}Z stdout F step {n}/1000 loss 0.5" for n, at in enumerate(steps, start=1)
    ]
    last = steps[-1] + timedelta(seconds=3615)
    lines.append(f"{last:%Y-%m-%dT%H:%M:%S}Z stdout F {ALIVE}")
    assert diagnose("\n".join(lines) + "\n").verdict == "stalled"
