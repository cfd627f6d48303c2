"""A Run page reads its data from the file once; later writes are added to the data in memory."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest

from stallwatch_dashboard.data import cache, frames
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.data.metrics_page import Reading
from stallwatch_dashboard.data.store import MetricStore


def write(store: MetricStore, second: int, value: float, rank: int | None = 0, run: str = "run") -> None:
    store.write([Reading(run, "stallwatch_step", rank, "", value)], float(second))


def shown(store: MetricStore, run: str = "run") -> list[tuple[float, float]]:
    frame = store.series(run, "stallwatch_step")
    return list(zip(frame["t"], frame["v"], strict=True))


def test_new_points_appear_at_the_next_query() -> None:
    store = MetricStore()
    for second in range(5):
        write(store, second, second)
        assert shown(store) == [(float(n), float(n)) for n in range(second + 1)]


def test_new_rank_appears_with_its_first_point() -> None:
    store = MetricStore()
    write(store, 0, 1.0)
    assert len(shown(store)) == 1
    write(store, 1, 7.0, rank=1)
    assert sorted(value for _, value in shown(store)) == [1.0, 7.0]


def test_metric_without_queries_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST_FRESH", 20)
    store = MetricStore()
    for second in range(120):
        write(store, second, second)
        store.write([Reading("run", "stallwatch_loss", 0, "", second / 7)], float(second))
        if second % 50 == 0:
            store.series("run", "stallwatch_step")
    waiting = [metric.fresh for metric in store._cache._runs["run"].metrics.values()]
    assert waiting and max(map(len, waiting)) <= 20
    assert len(store.series("run", "stallwatch_loss")) == 120


def test_restart_shows_the_same_data(tmp_path: Path) -> None:
    store = MetricStore(tmp_path / "m.duckdb")
    for second, value in enumerate([1.0, 1.0, math.inf, 3.0]):
        write(store, second, value)
    before = shown(store)
    store.close()
    again = MetricStore(tmp_path / "m.duckdb")
    assert shown(again) == before == [(0, 1), (1, 1), (2, math.inf), (3, 3)]
    again.close()


def test_pruned_points_disappear_from_the_cache() -> None:
    store = MetricStore()
    for second in range(10):
        write(store, second, second)
    assert len(shown(store)) == 10
    store.prune(5.0)
    assert [time for time, _ in shown(store)] == [5, 6, 7, 8, 9]


def test_number_of_cached_runs_is_bounded() -> None:
    store = MetricStore()
    for number in range(cache._MOST_RUNS + 5):
        write(store, 0, number, run=f"run-{number}")
        assert shown(store, f"run-{number}") == [(0.0, float(number))]
    assert len(store._cache._runs) == cache._MOST_RUNS
    assert shown(store, "run-0") == [(0.0, 0.0)]


def readings(second: int) -> list[Reading]:
    """Return readings of every kind: of the run, of ranks, NaN, a plateau, a late series and a late rank."""
    found = [
        Reading("run", "stallwatch_step", None, "", float(second)),
        Reading("run", "stallwatch_loss", 0, "", math.nan if second % 50 == 7 else second * 7919 % 101),
        Reading("run", "stallwatch_stall_threshold_seconds", None, '{"phase": "train"}', 30.0),
        Reading("run", "stallwatch_step_duration_seconds_sum", None, "", second * 2.0),
        Reading("run", "stallwatch_step_duration_seconds_count", None, "", float(second)),
        Reading("other", "stallwatch_step", None, "", float(second)),
    ]
    for rank in range(4 if second > 150 else 3):
        found.append(Reading("run", "stallwatch_rank_step", rank, "", float(second - rank * (second % 3))))
    if second > 100:
        for number, phase in enumerate(("train", "eval")):
            label = json.dumps({"stallwatch_phase": phase})
            found.append(Reading("run", "stallwatch_phase", None, label, float(second // 40 % 2 == number)))
    return found


def test_frames_after_many_refreshes_equal_those_of_a_new_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cached data were read, thinned, extended and thinned again."""
    monkeypatch.setattr(cache, "_LOADED_POINTS", 200)
    monkeypatch.setattr(frames, "_POINTS", 60)
    monkeypatch.setattr(frames, "_RANK_POINTS", 120)
    store = MetricStore()
    for second in range(500):
        store.write(readings(second), 1_795_000_000.0 + second)
        if second > 40 and second % 17 == 0:
            frames.from_store(store, "run")
    seen = frames.from_store(store, "run")
    store._cache.forget()
    anew = frames.from_store(store, "run")
    assert 20 < len(seen.loss) < 80 and 20 < len(seen.rank_steps) < 140 and len(seen.phases) > 5
    for each in fields(RunFrames):
        one, two = getattr(seen, each.name), getattr(anew, each.name)
        if isinstance(one, pd.DataFrame):
            pd.testing.assert_frame_equal(one, two)
        else:
            assert one == two, each.name
