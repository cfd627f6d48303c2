"""Conversion of stored series to the frames of the charts."""

from __future__ import annotations

import pandas as pd
import pytest

from stallwatch_dashboard.data import frames
from stallwatch_dashboard.data.frames import (
    COLUMNS,
    RunFrames,
    durations,
    highest,
    joined,
    limit_ranks,
    total,
)
from stallwatch_dashboard.data.metrics_page import Reading
from stallwatch_dashboard.data.rebuild import thin
from stallwatch_dashboard.data.store import MetricStore


def frame(*rows: tuple[int | None, float, float]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(COLUMNS)).astype(COLUMNS)


def labelled(*rows: tuple[int | None, float, float]) -> pd.DataFrame:
    return frame(*rows).assign(labels="", agent="")


def pairs(found: pd.DataFrame) -> list[tuple[float, float]]:
    return list(zip(found["t"], found["v"], strict=True))


def test_totals_add_ranks_scraped_at_different_times() -> None:
    found = total(labelled((0, 0, 1), (0, 2, 3), (1, 1, 10), (1, 3, 20)))
    assert pairs(found) == [(0, 1), (1, 11), (2, 13), (3, 23)]


def test_progress_is_that_of_the_most_advanced_rank() -> None:
    assert pairs(highest(labelled((0, 0, 1), (0, 1, 3), (1, 0, 2)))) == [(0, 2), (1, 3)]


def test_step_time_is_the_mean_of_counted_steps() -> None:
    sums = labelled((None, 0, 2.0), (None, 4, 2.0), (None, 5, 8.0), (None, 9, 8.0), (None, 10, 9.0))
    counts = labelled((None, 0, 1), (None, 4, 1), (None, 5, 3), (None, 9, 3), (None, 10, 4))
    assert pairs(durations(sums, counts)) == [(5, 3.0), (10, 1.0)]


def test_step_time_without_steps_is_empty() -> None:
    assert durations(labelled(), labelled()).empty


def test_thinning_keeps_minimum_maximum_and_last_point() -> None:
    rows = [(0, float(t), 5.0) for t in range(1000)]
    rows[500] = (0, 500.0, 50.0)
    rows[700] = (0, 700.0, -5.0)
    found = thin(frame(*rows), 100)
    assert len(found) <= 103
    assert (found["v"].max(), found["v"].min(), found["t"].iloc[-1]) == (50, -5, 999)


@pytest.mark.parametrize("ranks", [8, 64])
def test_many_ranks_are_represented_by_three(ranks: int) -> None:
    shown = limit_ranks(frame(*((rank, 0.0, float(rank)) for rank in range(ranks))))
    assert set(shown["rank"]) == (set(range(8)) if ranks == 8 else {0, 32, 63})


def test_frames_contain_all_metrics_of_a_run() -> None:
    store = MetricStore()
    for second in range(4):
        store.write(
            [
                Reading("r", "stallwatch_step", None, "", float(second)),
                Reading("r", "stallwatch_target_steps", None, "", 900.0),
                Reading("r", "stallwatch_loss", 0, "", 2.0 - second / 10),
                Reading("r", "stallwatch_step_duration_seconds_sum", None, "", second * 1.5),
                Reading("r", "stallwatch_step_duration_seconds_count", None, "", float(second)),
                Reading("r", "stallwatch_stall_threshold_seconds", None, '{"phase": "train"}', 30.0),
                Reading("r", "stallwatch_stall_threshold_seconds", None, '{"phase": "init"}', 1800.0),
                Reading("r", "stallwatch_last_step_timestamp_seconds", 0, "", 1000.0 + second),
                Reading("r", "stallwatch_trace_cache_invalidations_total", 0, "", second * 2.0),
                Reading("r", "stallwatch_trace_cache_invalidations_total", 1, "", second * 3.0),
                Reading("r", "stallwatch_host_memory_bytes", None, "", 1e9),
            ],
            1000.0 + second,
        )
    found = frames.from_store(store, "r")
    assert pairs(found.steps)[-1] == (1003, 3)
    assert [v for _, v in pairs(found.step_seconds)] == [1.5, 1.5, 1.5]
    assert set(found.threshold["v"]) == {30.0}
    assert pairs(found.invalidations)[-1] == (1003, 9)  # ranks invalidate the same trace
    assert (found.memory_kind, found.last_step_at, found.total_steps) == ("host_rss", 1003, 900)
    assert not found.nothing and frames.from_store(store, "other").nothing


@pytest.mark.parametrize("rank", [0, None])
def test_constant_value_is_a_line_up_to_the_last_step(rank: int | None) -> None:
    """The store keeps two points: the first one and, long after the last step, the newest one."""
    store = MetricStore()
    for second in range(100):
        store.write(
            [
                Reading("r", "stallwatch_grad_norm", rank, "", 1.0),
                Reading("r", "stallwatch_last_step_timestamp_seconds", 0, "", 1000.0 + min(second, 30)),
            ],
            1000.0 + second,
        )
    assert pairs(frames.from_store(store, "r").grad_norm) == [(1000, 1), (1030, 1)]


def test_loss_is_not_extended_through_a_stall() -> None:
    store = MetricStore()
    for second in range(100):
        store.write(
            [
                Reading("r", "stallwatch_loss", 0, "", 2.0),
                Reading("r", "stallwatch_last_step_timestamp_seconds", 0, "", 1005.0),
            ],
            1000.0 + second,
        )
    assert frames.from_store(store, "r").loss["t"].max() <= 1008


def test_rebuilt_history_precedes_scraped_points() -> None:
    early = RunFrames(steps=frame((None, 0, 1), (None, 5, 2), (None, 20, 9)), notes=("cut",), rebuilt=True)
    late = RunFrames(steps=frame((None, 10, 3)), last_step_at=10.0)
    found = joined(early, late, 10.0)
    assert pairs(found.steps) == [(0, 1), (5, 2), (10, 3)]
    assert found.notes == ("cut",) and not found.rebuilt and found.last_step_at == 10.0
