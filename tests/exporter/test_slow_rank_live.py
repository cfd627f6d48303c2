"""A rank that all others wait for in each step is named during the run."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.cluster.member import Member
from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.probe.draft import INDEX
from stallwatch_exporter.watching.agent import Agent
from stallwatch_rules.locale import render


def train(
    probed: tuple[Any, list[Probe]],
    steps: int,
    later: float,
    seconds: float = 2.0,
    *,
    own: float = 0.5,
    more_tokens: float = 0.0,
) -> None:
    """Make steps of `seconds` each; rank 1 starts its backward pass `later` seconds after the others."""
    run, probes = probed
    for _ in range(steps):
        run.wait(seconds)
        for rank, probe in enumerate(probes):
            probe.row[INDEX["own_seconds"]] = own + later * rank
            probe.row[INDEX["tokens"]] = 4096 * (1 + more_tokens * rank)
            probe.step(loss=0.5)


def cost_in(note: str) -> float:
    found = re.search(r"by (\d+)%", note)
    assert found is not None
    return int(found[1]) / 100


def test_slow_rank_is_named_until_it_keeps_up(
    probed: tuple[Any, list[Probe]],
) -> None:
    run, _ = probed
    train(probed, 60, 0.0)
    assert run.sent == []
    train(probed, 32, 0.8)
    (incident,) = run.sent
    assert (incident.rule, incident.severity, incident.rank) == ("straggler-slow-node", "warning", 1)
    assert incident.host == run.folder.info.host
    assert (note := render(incident.note)).startswith(f"Rank 1 on {incident.host} takes 1")
    assert cost_in(note) == pytest.approx(0.4, abs=0.03)
    train(probed, 60, 0.0)
    assert (run.sent[-1].status, run.sent[-1].resolution) == ("resolved", "recovered")


def test_steps_of_a_run_over_hosts_are_reported_to_the_coordinator(probed: tuple[Any, list[Probe]]) -> None:
    run, _ = probed
    identity, nobody = RunIdentity(key="5f", job="8123.0", origin="slurm"), cast(Any, None)
    member = Member(identity, "sft", nobody, [], agent="a", host="n1", host_id="id", start=False)
    probing = run.agent._probing
    joining = cast(Any, SimpleNamespace(member=member, look=lambda _pids: None))
    run.agent = Agent(
        run.folder, run.settings, run.catalogue, [], clock=lambda: run.now, probing=probing, joining=joining
    )
    train(probed, 5, 0.3)
    paces = {pace.rank: pace for pace in member.report().paces}
    assert sorted(paces) == [0, 1]
    assert paces[1].steps == paces[0].steps == [2, 3, 4]
    assert paces[1].own[-1] == 0.8


def test_slower_steps_are_one_incident_with_the_rank(probed: tuple[Any, list[Probe]]) -> None:
    run, _ = probed
    train(probed, 60, 0.0)
    train(probed, 40, 3.0, seconds=5.0)
    assert {(incident.rule, incident.rank) for incident in run.sent} == {("straggler-slow-node", 1)}


def test_slower_steps_of_all_ranks_name_no_rank(probed: tuple[Any, list[Probe]]) -> None:
    run, _ = probed
    train(probed, 60, 0.0)
    train(probed, 40, 0.0, seconds=5.0)
    assert {incident.rule for incident in run.sent} == {"step-time-degraded"}


@pytest.mark.parametrize(("later", "seconds"), [(0.3, 2.0), (0.04, 0.15)])
def test_slightly_later_rank_is_not_slow(
    later: float, seconds: float, probed: tuple[Any, list[Probe]]
) -> None:
    """A rank that logs is later than the others, by a large share of very short steps."""
    run, _ = probed
    train(probed, 60, later, seconds, own=0.1)
    assert run.sent == []


def test_more_tokens_are_an_imbalance(probed: tuple[Any, list[Probe]]) -> None:
    run, _ = probed
    train(probed, 60, 0.8, more_tokens=1.6)
    (incident,) = run.sent
    assert incident.rank == 1
    assert render(incident.note).startswith(f"Rank 1 on {incident.host} receives more tokens than")


@pytest.mark.parametrize("goes_on", [True, False])
def test_exited_late_rank_is_not_reported(
    goes_on: bool, probed: tuple[Any, list[Probe]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, probes = probed
    up = {rank: frozenset({Path(f"{rank}.ring")}) for rank in range(2)}
    monkeypatch.setattr(run.agent._probing, "ranks_up", lambda: up)
    train(probed, 40, 0.8)
    del up[1]
    run.wait(1.0)
    if goes_on:
        train((run, probes[:1]), 3, 0.0)
    findings = [finding.rule for finding in run.end("finished", 0).findings]
    assert ("straggler-slow-node" in findings) is not goes_on
