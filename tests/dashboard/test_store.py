"""The DuckDB store: small, exact at changes, readable after restarts, and never a reason to stop."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from stallwatch_dashboard.data.metrics_page import Reading
from stallwatch_dashboard.data.store import MetricStore
from stallwatch_rules.locale import render
from stallwatch_rules.messages import has, message

STEP = "stallwatch_step"


def reading(value: float, metric: str = STEP, rank: int | None = 0, labels: str = "") -> Reading:
    return Reading("run", metric, rank, labels, value)


def points(store: MetricStore, metric: str = STEP, **options: object) -> list[tuple[float, float]]:
    frame = store.series("run", metric, **options)  # type: ignore[arg-type]
    return list(zip(frame["t"], frame["v"], strict=True))


def test_constant_value_needs_one_point_per_heartbeat() -> None:
    store = MetricStore()
    written = sum(store.write([reading(1.0)], float(second)) for second in range(180))
    assert written == 3


def test_end_of_a_plateau_is_exact() -> None:
    store = MetricStore()
    for second in range(11):
        store.write([reading(5.0 if second < 10 else 6.0)], float(second))
    assert points(store) == [(0, 5), (9, 5), (10, 6)]


def test_last_value_extends_to_the_last_scrape() -> None:
    store = MetricStore()
    store.write([reading(5.0)], 0.0)
    store.write([reading(5.0)], 7.0)
    assert points(store) == [(0, 5), (7, 5)]


def test_nan_and_infinity_are_stored() -> None:
    store = MetricStore()
    for second, value in enumerate((1.0, math.nan, math.nan, math.inf, 2.0)):
        store.write([reading(value)], float(second))
    values = [value for _, value in points(store)]
    assert values[0] == 1.0 and math.isnan(values[1]) and math.inf in values and values[-1] == 2.0


def test_long_series_is_thinned_and_keeps_its_peaks() -> None:
    store = MetricStore()
    for second in range(600):
        store.write([reading(99.0 if second == 234 else second % 7)], float(second))
    found = points(store, points=100)
    assert len(found) <= 102
    assert max(value for _, value in found) == 99.0
    assert found[0][0] == 0 and found[-1][0] == 599


def test_ranks_and_labels_are_separate_series() -> None:
    store = MetricStore()
    store.write(
        [reading(1.0, rank=0), reading(2.0, rank=1), reading(3.0, rank=None, labels='{"a": "b"}')], 0.0
    )
    assert store.latest("run", STEP) == {(0, ""): 1.0, (1, ""): 2.0, (None, '{"a": "b"}'): 3.0}
    assert store.series("run", STEP)["rank"].isna().sum() == 1
    assert store.series("another run", STEP).empty


def test_restart_continues_the_stored_series(tmp_path: Path) -> None:
    path = tmp_path / "metrics.duckdb"
    store = MetricStore(path)
    store.write([reading(1.0)], 0.0)
    store.write([reading(1.0)], 8.0)
    store.close()
    store = MetricStore(path)
    assert store.latest("run", STEP) == {(0, ""): 1.0}
    assert store.last_seen() == {"run": 8.0}
    assert store.first_seen("run") == 0.0
    store.write([reading(2.0), reading(7.0, "stallwatch_loss")], 20.0)
    assert points(store) == [(0, 1), (8, 1), (20, 2)]
    assert points(store, "stallwatch_loss") == [(20, 7)]


def test_locked_file_is_replaced_by_memory_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "metrics.duckdb"
    program = (
        f"import duckdb, sys; c = duckdb.connect({str(path)!r}); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout and holder.stdout.readline() == b"held\n"
        store = MetricStore.open(path)
        assert store.path is None
        assert store.problem == message("dashboard.store_locked", path=str(path))
        store.write([reading(1.0)], 0.0)
        assert points(store) == [(0, 1)]
    finally:
        holder.communicate()


def test_corrupt_file_is_replaced_by_memory_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "metrics.duckdb"
    path.write_bytes(b"not a database " * 1000)
    store = MetricStore.open(path)
    assert has(store.problem, "dashboard.store_unusable") and str(path) in render(store.problem)
    assert path.read_bytes().startswith(b"not a database")


def test_old_points_and_empty_series_are_pruned() -> None:
    store = MetricStore()
    store.write([reading(1.0, "stallwatch_old")], 0.0)
    for second in range(10):
        store.write([reading(float(second))], float(second))
    store.prune(5.0)
    assert points(store)[0] == (5, 5)
    assert store.latest("run", "stallwatch_old") == {}


def test_failed_write_is_rolled_back_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MetricStore()

    def full(*_: object) -> None:
        raise duckdb.IOException("No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(store, "_insert", full)
        with pytest.raises(duckdb.Error):
            store.write([reading(1.0)], 0.0)
    store.write([reading(1.0)], 1.0)
    assert points(store) == [(1, 1)]


def test_start_of_a_run_is_known_after_pruning(tmp_path: Path) -> None:
    store = MetricStore(tmp_path / "m.duckdb")
    for second in range(10):
        store.write([reading(float(second))], float(second))
    assert store.first_seen("run") == 0 and store.first_seen("nobody") is None
    store.prune(4.0)
    assert store.first_seen("run") == 4
    store.close()
    again = MetricStore(tmp_path / "m.duckdb")
    assert again.first_seen("run") == 4
    again.close()
