"""What a Run page asks is read from the file once; writes after that are told to what was read."""

from __future__ import annotations

import math
from pathlib import Path

from stallwatch_dashboard.sources import recall
from stallwatch_dashboard.sources.exposition import Reading
from stallwatch_dashboard.sources.store import MetricStore


def write(store: MetricStore, second: int, value: float, rank: int | None = 0, run: str = "run") -> None:
    store.write([Reading(run, "stallwatch_step", rank, "", value)], float(second))


def shown(store: MetricStore, run: str = "run") -> list[tuple[float, float]]:
    frame = store.series(run, "stallwatch_step")
    return list(zip(frame["t"], frame["v"], strict=True))


def test_what_is_written_after_the_first_look_is_seen_at_the_next() -> None:
    store = MetricStore()
    for second in range(5):
        write(store, second, second)
        assert shown(store) == [(float(n), float(n)) for n in range(second + 1)]


def test_a_rank_that_comes_later_is_seen_with_its_first_point() -> None:
    store = MetricStore()
    write(store, 0, 1.0)
    assert len(shown(store)) == 1
    write(store, 1, 7.0, rank=1)
    assert sorted(value for _, value in shown(store)) == [1.0, 7.0]


def test_a_restart_shows_the_same(tmp_path: Path) -> None:
    store = MetricStore(tmp_path / "m.duckdb")
    for second, value in enumerate([1.0, 1.0, math.inf, 3.0]):
        write(store, second, value)
    before = shown(store)
    store.close()
    again = MetricStore(tmp_path / "m.duckdb")
    assert shown(again) == before == [(0, 1), (1, 1), (2, math.inf), (3, 3)]
    again.close()


def test_pruned_points_are_gone_also_for_a_run_that_is_looked_at() -> None:
    store = MetricStore()
    for second in range(10):
        write(store, second, second)
    assert len(shown(store)) == 10
    store.prune(5.0)
    assert [time for time, _ in shown(store)] == [5, 6, 7, 8, 9]


def test_only_so_many_runs_are_kept() -> None:
    store = MetricStore()
    for number in range(recall._MOST_RUNS + 5):
        write(store, 0, number, run=f"run-{number}")
        assert shown(store, f"run-{number}") == [(0.0, float(number))]
    assert len(store._recall._runs) == recall._MOST_RUNS
    assert shown(store, "run-0") == [(0.0, 0.0)]
