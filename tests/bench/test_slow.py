"""Small version of the simulation of ``bench/slow.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
import slow

from stallwatch_rules.judgements import slow_hosts


@pytest.mark.parametrize("noise", ["gaussian", "log-normal"])
def test_slowdown_of_ten_percent_is_found_within_ten_steps(noise: str) -> None:
    found = slow.slow_downs(noise, 0.03, 128, 4, seed=1)
    assert all(item is not None and item <= 10 for item in found)
    assert "100.0% of 4" in slow.line_of(noise, 0.03, found)


@pytest.mark.parametrize("hosts", [2, 5, 24])
def test_vectorized_twin_agrees_with_the_product(hosts: int) -> None:
    assert slow.compare_twin(hosts, seed=2, runs=2, steps=150) == 3 * 2 * 150


@pytest.mark.parametrize("noise", slow.NOISES)
@pytest.mark.parametrize("sigma", [0.03, 0.5])
def test_healthy_hosts_are_not_reported_as_slow(noise: str, sigma: float) -> None:
    alarms, hours = slow.false_alarms(noise, sigma, 16, 10.0, 64, seed=1)
    assert hours >= 10.0
    assert alarms == 0


def test_correlated_noise_requires_more_steps() -> None:
    assert [slow.fewest("gaussian", sigma) for sigma in (0.01, 0.03, 0.2)] == [1, 5, 187]
    assert [slow.fewest("AR(1)", 0.03, errors) for errors in (0.0, 2.326)] == [14, 34]


def test_results_are_stored_and_reused(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    assert slow.Kept(path, [8, 1])(["a"], lambda: [1, None]) == [1, None]
    assert slow.Kept(path, [8, 1])(["a"], lambda: [2]) == [1, None]
    assert slow.Kept(path, [9, 1])(["a"], lambda: [2]) == [2]


def test_simulation_detects_a_test_that_is_too_sensitive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation can fail."""
    monkeypatch.setattr(slow, "Z", 3.0)
    alarms, _ = slow.false_alarms("gaussian", 0.2, 16, 2.0, 16, seed=1)
    assert alarms > 0
    monkeypatch.setattr(slow_hosts, "Z", 1.0)
    with pytest.raises(AssertionError, match="differs"):
        slow.compare_twin(5, seed=2, runs=2, steps=150)
