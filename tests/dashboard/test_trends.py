"""History of a run's loss and step times in little memory."""

from __future__ import annotations

import math
from pathlib import Path

from stallwatch_dashboard.data.metrics_page import Reading
from stallwatch_dashboard.data.store import MetricStore
from stallwatch_dashboard.data.summaries import MOST_LOSSES, trend_of


def scrape(step: int, rank: int = 0) -> list[Reading]:
    took = 1.0 if step < 60 else 3.0
    seconds = step * 1.0 if step < 60 else 59 + (step - 59) * took
    return [
        Reading("run", "stallwatch_loss", rank, "", 100.0 / (step + 1)),
        Reading("run", "stallwatch_loss", rank + 1, "", 7.0),
        Reading("run", "stallwatch_step_duration_seconds_sum", None, "", seconds),
        Reading("run", "stallwatch_step_duration_seconds_count", None, "", float(step)),
    ]


def test_trend_has_current_and_early_step_time() -> None:
    store = MetricStore()
    for step in range(1, 100):
        store.write(scrape(step), float(step))
    found = store.summaries(["run"], 100.0)["run"]
    assert (found.step_seconds, found.baseline_seconds) == (3.0, 1.0)
    assert found.loss == 1.0 and found.stepping_seconds == 179.0 and found.started_at == 1.0


def test_first_scrape_gives_the_mean_step_time() -> None:
    store = MetricStore()
    store.write(scrape(50), 1.0)
    assert store.summaries(["run"], 1.0)["run"].step_seconds == 1.0


def test_loss_history_is_bounded_and_excludes_nan() -> None:
    values = [float(n) for n in range(5000)]
    losses = trend_of([math.nan, *values, math.inf], []).losses
    assert MOST_LOSSES <= len(losses) <= 2 * MOST_LOSSES
    assert losses[-1] == 4999.0 and list(losses) == sorted(losses) and losses[0] < 200


def test_restarted_agent_causes_no_negative_step_time() -> None:
    trend = trend_of([], [(10.0, 10.0), (20.0, 20.0), (1.0, 1.0), (3.0, 2.0)])
    assert trend.step_seconds == 1.5  # the median of 1 and 2


def test_trends_survive_a_restart(tmp_path: Path) -> None:
    first = MetricStore(tmp_path / "m.duckdb")
    for step in range(1, 200):
        first.write(scrape(step), float(step))
    before = first.summaries(["run"], 200.0)["run"]
    first.close()
    again = MetricStore(tmp_path / "m.duckdb")
    found = again.summaries(["run"], 200.0)["run"]
    again.close()
    assert (found.step_seconds, found.baseline_seconds) == (before.step_seconds, before.baseline_seconds)
    assert found.started_at == 1.0 and found.losses[-1] == 0.5 and len(found.losses) <= 2 * MOST_LOSSES + 1
    assert found.losses[0] > 20


def test_pruned_run_leaves_no_trend() -> None:
    store = MetricStore()
    store.write(scrape(5), 1.0)
    store.prune(100.0)
    assert store.last_seen() == {} and store.summaries(["run"], 1.0)["run"].losses == ()
