"""Small version of ``make bench-stall``: no healthy run is called stalled, and every hang is."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from simulated import KINDS, SAVES, UNFORESEEN, Course, simulate
from stall import ROOT, false_stalls, final, hangs, summary, watched
from watchers import FIXED, LOOK_TICK, Verdict, Watched, found_after, watch_recording

HOURS = 5.0  # smallest number of hours for each kind


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_healthy_runs_are_not_stalled_and_their_hangs_are_found(kind: str) -> None:
    verdicts = watched(HOURS, seed=3, kinds=[kind])
    both = [*verdicts, *final(verdicts)]
    assert [wrong for verdict in both for wrong in verdict.wrongly] == []
    assert all(30 < verdict.found_after <= 4 * 7200 + LOOK_TICK for verdict in both)
    assert all((verdict.looked is None) == kind.startswith("log only") for verdict in verdicts)


def test_simulation_detects_fixed_timeouts_that_are_too_short() -> None:
    """The simulation can fail: fixed timeouts fail on the same runs."""
    verdicts = watched(HOURS, seed=3, kinds=["log only, each 33 minutes", "rollouts"])
    assert all(sum(verdict.false_fixed[seconds] for verdict in verdicts) > 0 for seconds in FIXED)


@pytest.mark.parametrize("kind", sorted({**KINDS, **UNFORESEEN}))
def test_time_of_simulated_runs_only_increases(kind: str) -> None:
    report = list(islice(simulate(kind, random.Random(1)).reports, 300))
    assert len(report) == 300
    assert all(each.wait >= 0 for each in report)
    assert all(isinstance(each.value, int) for each in report if each.what in ("step", "log-step"))


def test_messages_of_a_simulated_log_are_read_as_phases() -> None:
    watched_log = Watched()
    course = Course(random.Random(1), hooked=False)
    now = 1_790_000_000.0
    for report in [*course.begin(), *course.steps(3, lambda: 1.0), *course.save(5.0)]:
        now += report.wait
        watched_log.take(now, report, 1)
        if report.value == SAVES:
            assert watched_log.progress.phase == "save"


def test_hang_is_found_within_three_times_the_usual_step() -> None:
    watched_run = Watched()
    course = Course(random.Random(1))
    now = 1_790_000_000.0
    for report in [*course.begin(), *course.steps(400, lambda: 20.0)]:
        now += report.wait
        watched_run.take(now, report, 2)
    assert found_after(watched_run, watched_run.watch.last_sign) <= 62


def test_recordings_with_timestamps_are_replayed() -> None:
    verdict = watch_recording(ROOT / "tests" / "recordings" / "trace-cache-healthy")
    assert verdict is not None and verdict.hours > 0
    assert verdict.false_learnt == 0


def test_summary_contains_the_rate_of_false_stalls_and_the_time_to_a_hang() -> None:
    verdicts = [Verdict("even", 400.0, 1, 31.0), Verdict("even", 100.0, 0, 33.0)]
    assert (
        summary(verdicts) == "2.00 false stalls per 1,000 run-hours; a hang is reported after 32 s (median)"
    )


def test_tables_have_a_line_for_each_kind() -> None:
    verdicts = watched(1.0, seed=1, kinds=["even steps", "log only, each 33 minutes"])
    for table in (false_stalls(verdicts), hangs(verdicts)):
        assert [line.split("  ")[0] for line in table.splitlines()[1:4]] == [
            "even steps",
            "log only, each 33 minutes",
            "all",
        ]
