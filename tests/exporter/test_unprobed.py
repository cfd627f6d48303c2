"""A notice that no rank has a probe comes once, and only for a training that has steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.watching.probe_intake import NO_PROBE, WAIT_SECONDS


def test_steps_in_the_log_and_no_ring_are_told_once(probed: tuple[Any, list[Probe]], tmp_path: Path) -> None:
    run, _ = probed
    # As if no ring had ever existed.
    for path in (tmp_path / "rings").iterdir():
        path.unlink()
    run.wait(100)
    assert run.notices == [], "it may be no training, or load a model"
    run.steps(1, 2)
    assert run.notices == []
    run.wait(WAIT_SECONDS)
    assert run.notices == [NO_PROBE]
    run.steps(3, 20)
    assert run.notices == [NO_PROBE]


def test_ranks_with_a_probe_are_no_news(probed: tuple[Any, list[Probe]]) -> None:
    run, probes = probed
    run.train(probes, 3)
    run.steps(4, 14)
    assert run.notices == []


def test_without_probing_no_rank_is_missing(run: Any) -> None:
    run.steps(1, 20)
    assert run.notices == []
