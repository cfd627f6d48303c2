"""``stallwatch coordinator`` loses nothing that its agents cannot send again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from clustercases import Chat, Clock, Host, incident
from ports import free_port

from stallwatch_exporter.cluster import service
from stallwatch_exporter.cluster.client import HttpBacking
from stallwatch_exporter.cluster.coordinator import Coordinator
from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.cluster.secrets import configured_secret
from stallwatch_exporter.cluster.wire import AgentReport
from stallwatch_exporter.settings import JoinSettings
from stallwatch_rules.endings import Ending


class Run:
    """A service, and the agents of one run that post to it."""

    def __init__(self, home: Path) -> None:
        self.chat, self.home, self.clock = Chat(), home, Clock()
        self.join = JoinSettings(
            host="127.0.0.1", port=free_port(), secret="s3cret-of-the-cluster", address=""
        )
        secret = configured_secret(self.join)
        assert secret is not None
        self.service = service.CoordinatorService(self.join, secret, [self.chat], notice=lambda _: None)

    def post(self, report: AgentReport) -> Sequence[str]:
        """Post as an agent; return the incidents that the answer shows as sent."""
        join = JoinSettings(
            host="127.0.0.1", secret=self.join.secret, address=f"127.0.0.1:{self.service.port}"
        )
        backing = HttpBacking(
            RunIdentity(key="5f", job="8123.0", origin="flags"),
            join,
            self.home,
            Coordinator([]),
            agent=report.agent,
            host_id=report.host_id,
            notice=print,
            hostname=report.host,
        )
        reply = backing.post(report)
        backing.close()
        assert reply is not None and reply.acknowledged == {report.agent: report.number}
        return [item.id for item in reply.ledger]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def crashed(run: Run, expected: int) -> AgentReport:
    host = Host("n1", 0, run.clock, expected=expected)
    at = host.wall()
    host.has(
        incident(
            at, kind="ended", rule="cuda-oom", status="resolved", resolution="run-failed", resolved_at=at
        )
    )
    return host.report(ending=Ending("failed", 1))


@pytest.mark.parametrize("expected", [1, 2], ids=["all have answered", "others may still answer"])
def test_service_sends_incidents_of_ended_agents_before_it_ends(run: Run, expected: int) -> None:
    assert run.post(crashed(run, expected)) == []
    run.service.close()
    assert [item.rule for item in run.chat.got] == ["cuda-oom"]


def test_service_without_unsent_incidents_ends_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LEAVING_SECONDS", 3600.0)
    run.post(Host("n1", 0, run.clock).report())
    run.service.close()
    assert not run.chat.got
