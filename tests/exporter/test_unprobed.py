"""A notice that no rank has a probe comes once, and only for a training that has steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.watching.probe_intake import NO_PROBE, WAIT_SECONDS, ProbeIntake


def test_steps_without_a_probe_are_reported_once(probed: tuple[Any, list[Probe]], tmp_path: Path) -> None:
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


def test_ranks_with_a_probe_are_not_reported(probed: tuple[Any, list[Probe]]) -> None:
    run, probes = probed
    run.train(probes, 3)
    run.steps(4, 14)
    assert run.notices == []


def test_disabled_probe_is_not_reported(run: Any) -> None:
    run.steps(1, 20)
    assert run.notices == []


@pytest.mark.parametrize(
    ("command", "notices"), [(["python", "train.py"], 1), (["stallwatch", "replay", "r"], 0)]
)
def test_replay_without_probes_is_not_reported(command: list[str], notices: int) -> None:
    said: list[str] = []
    reading: Any = SimpleNamespace(tracker=SimpleNamespace(last_step=5))
    intake = ProbeIntake(reading, lambda _: None, said.append, command=command)
    for now in (0.0, WAIT_SECONDS):
        intake.update_ranks({}, now)
    assert said == [NO_PROBE] * notices
