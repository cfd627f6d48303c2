"""A live watch of a run and a later reading of its log learn the same thresholds."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.watching.progress import Advance, HookedProgress
from stallwatch_exporter.watching.stall import StallWatch
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.progress.rhythm import learnt_threshold
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Line
from stallwatch_rules.samples import extract

START = datetime(2026, 3, 2, 9, 0, tzinfo=timezone.utc)


def logged(waits: list[float], stride: int = 1) -> list[Line]:
    """Return the log of a run with these step times, as it is read: times have milliseconds."""
    rows, now = [], START
    for step, seconds in enumerate([0.0, *waits], start=1):
        now += timedelta(seconds=seconds)
        time = now.strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
        rows.append(f"{time} - INFO - {{'loss': {1 + 1 / step:.4f}, 'step': {step * stride}}}\n")
    reader = LineReader("train.log")
    return [*reader.feed("".join(rows).encode()), *reader.finish()]


def watched(lines: list[Line]) -> StallWatch:
    """Return a watch that read each line when it came, after a check."""
    assert lines[0].time is not None
    progress, watch = HookedProgress(), StallWatch(ExporterSettings(), lines[0].time - 5.0)
    advance = Advance(progress, watch, RunMetrics("run"))
    now = lines[0].time
    for line in lines:
        assert line.time is not None
        now = progress.reported_at = line.time
        watch.check(now)
        progress.add(extract(line), line)
        advance.seen(now)
    return watch


def read(lines: list[Line]) -> float:
    """Return the threshold that a diagnosis of the log computes."""
    tracker = ProgressTracker()
    for line in lines:
        tracker.add(extract(line), line)
    return learnt_threshold(tracker)


steps = st.one_of(
    st.lists(st.floats(0.001, 900.0), min_size=1, max_size=40),  # step times that vary, and stall
    st.lists(st.floats(0.8, 1.2), min_size=40, max_size=300),  # step times that hardly vary
    st.lists(st.sampled_from([0.4, 5.0, 29.0, 31.0, 95.0, 400.0, 2000.0]), min_size=8, max_size=60),
)


@settings(deadline=None)
@given(steps, st.sampled_from([1, 10]))
def test_threshold_of_the_log_equals_the_live_threshold(waits: list[float], stride: int) -> None:
    lines = logged(waits, stride)
    watch, afterwards = watched(lines), read(lines)
    live = watch.thresholds["train"]
    # With less data, a live watch allows more time, because the next line may come. A finished log has no
    # next line.
    enough_seen = watch.rhythm_known and sum(seconds for seconds in waits if seconds <= 84) >= 31
    assert afterwards == pytest.approx(live) if enough_seen else afterwards <= live + 1e-6


@pytest.mark.parametrize(
    ("waits", "live", "afterwards"),
    [
        ([1.0] * 4, 1800.0, 1800.0),
        ([2.0] * 9, 84.0, 30.0),  # less training than the floor
        ([20.0] * 20, 60.0, 60.0),
        ([1.0] * 60 + [200.0], 300.0, 300.0),  # a stall that ended by itself may come again
        ([0.5, 6.0, 1.0, 2.0, 12.0] * 40, 271.8, 271.8),  # steps that vary by nature
    ],
)
def test_thresholds_of_example_runs(waits: list[float], live: float, afterwards: float) -> None:
    lines = logged(waits)
    assert watched(lines).thresholds["train"] == pytest.approx(live, rel=0.01)
    assert read(lines) == pytest.approx(afterwards, rel=0.01)
