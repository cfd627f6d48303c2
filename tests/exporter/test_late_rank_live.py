"""A rank that all others wait for in each step is named while the run is up."""

from __future__ import annotations

from typing import Any

from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.probe.draft import INDEX


def train(probed: tuple[Any, list[Probe]], steps: int, later: float) -> None:
    """Steps of two seconds; rank 1 begins its backward pass this much later."""
    run, probes = probed
    for _ in range(steps):
        run.wait(2.0)
        for rank, probe in enumerate(probes):
            probe.row[INDEX["own_seconds"]] = 0.5 + later * rank
            probe.step(loss=0.5)


def test_the_rank_is_named_and_the_incident_closes_when_it_keeps_up(
    probed: tuple[Any, list[Probe]],
) -> None:
    run, _ = probed
    train(probed, 60, 0.0)
    assert run.told == []
    train(probed, 32, 0.8)
    (incident,) = run.told
    assert (incident.rule, incident.severity, incident.rank) == ("straggler-slow-node", "warning", 1)
    assert incident.host == run.folder.info.host
    assert "rank 1" in incident.note and "40%" in incident.note
    train(probed, 60, 0.0)
    assert (run.told[-1].status, run.told[-1].resolution) == ("resolved", "recovered")
