"""Hosts that do not report are named as the cause of failures that they explain."""

from __future__ import annotations

from typing import Any

import pytest
from clustercases import T0, Chat, Clock, Host, incident

from stallwatch_exporter.cluster.coordinator import Coordinator
from stallwatch_exporter.cluster.known_agent import KnownAgent
from stallwatch_exporter.cluster.merging import AWAITED_SECONDS, _explaining
from stallwatch_exporter.cluster.wire import Reply
from stallwatch_exporter.incident import Incident
from stallwatch_rules.endings import Ending
from stallwatch_rules.locale import LANGUAGES, render
from stallwatch_rules.messages import bilingual
from stallwatch_rules.records import Primary
from stallwatch_rules.stacks.records import StallStacks

KNOWN: dict[str, Any] = {"of_peers": False, "rule": "cuda-oom", "primary": None}


class Run:
    """Some of the three hosts of a run, and a coordinator."""

    def __init__(self, *names: str, **facts: Any) -> None:
        self.clock = Clock()
        self.chat = Chat()
        self.hosts = {name: Host(name, int(name[1:]) - 1, self.clock) for name in names}
        for host in self.hosts.values():
            host.facts |= facts
        self.coordinator = Coordinator([self.chat], name="n1-1", clock=self.clock, wall=self.clock.wall)

    def passes(self, seconds: float, *names: str, every: float = 10.0) -> Reply | None:
        """Advance the clock; these hosts post at the interval of a healthy run."""
        reply = None
        for second in range(round(seconds)):
            if second % every == 0:
                for name in names:
                    reply = self.coordinator.take(self.hosts[name].report())
            self.clock.now += 1.0
            self.coordinator.step()
        return reply

    def fails(self, *names: str, **facts: Any) -> None:
        """End the command on these hosts."""
        for name in names:
            host, at = self.hosts[name], self.hosts[name].wall()
            given = {"rule": "peer-closed", "of_peers": True, "primary": primary("peer-closed"), **facts}
            ended = {"kind": "ended", "status": "resolved", "resolution": "run-failed", "resolved_at": at}
            host.has(incident(at, **{**ended, **given}))
            host.facts["ending"] = Ending("failed", 1)
            self.coordinator.take(host.report())
        self.coordinator.step()


def primary(rule: str) -> Primary:
    title = bilingual("A peer closed its connection", "对端断开连接")
    return Primary(
        rule, title, "symptom", "fatal", 0.9, 0, "stderr", 7, None, 40, ["closed by peer"], {}, "", []
    )


def titles(chat: Chat) -> list[tuple[str, str, str]]:
    return [
        (item.kind, item.status, render(item.primary.title) if item.primary is not None else item.rule)
        for item in chat.got
    ]


def test_crash_after_the_loss_of_a_host_names_the_host() -> None:
    run = Run("n1", "n2", "n3")
    run.passes(21, *run.hosts)
    lost_at = T0 + run.clock.now - 1.0
    run.passes(4, "n1")
    run.fails("n1", "n3")
    run.passes(3)
    assert not run.chat.got and run.coordinator.is_waiting, "the next post of n2 is not overdue yet"
    run.passes(7)
    (sent,) = run.chat.got
    assert (sent.rule, sent.host, sent.rank, sent.gone_hosts) == ("host-gone", "n2", None, {"n2": lost_at})
    assert (sent.hosts, sent.run_hosts, sent.resolution) == (["n1", "n3"], 3, "run-failed")
    assert sent.primary is not None and sent.primary.evidence == ["closed by peer"]
    why = render(sent.primary.why)
    assert render(sent.primary.title) == "Host n2 stopped answering"
    assert "from n2 since 2023-11-14 22:30:20" in why and "A peer closed its connection." in why
    assert not run.coordinator.is_waiting


@pytest.mark.parametrize(
    ("reports", "facts", "rule"),
    [
        ((), {}, "host-gone"),
        ((), KNOWN, "cuda-oom"),  # the failure itself is known
        (("n2",), {}, "peer-closed"),  # n2 still reports that it runs
    ],
)
def test_host_is_the_cause_only_if_it_explains_the_failure(
    reports: tuple[str, ...], facts: dict[str, Any], rule: str
) -> None:
    run = Run("n1", "n2", "n3")
    run.passes(24, *run.hosts)
    run.fails("n1", "n3", **facts)
    run.passes(4, *reports)
    assert bool(run.chat.got) == (rule != "host-gone")
    run.passes(10, *reports)
    assert [item.rule for item in run.chat.got] == [rule]


def test_failure_of_a_late_host_replaces_the_symptoms() -> None:
    run = Run("n1", "n2", "n3")
    run.passes(24, *run.hosts)
    run.fails("n1", "n3")
    run.passes(5)
    run.fails("n2", **KNOWN)
    run.passes(2)
    assert [(item.rule, item.host) for item in run.chat.got] == [("cuda-oom", "n2")]


def test_host_that_was_lost_with_its_coordinator_is_named() -> None:
    run = Run("n2", "n3")
    for host in run.hosts.values():
        host.facts["hosts"] = {"n1": "0", "n2": "1", "n3": "2"}
    run.fails("n2", "n3")
    run.passes(11)
    assert not run.chat.got
    run.passes(3)
    assert [(item.rule, item.host, item.run_hosts) for item in run.chat.got] == [("host-gone", "n1", 3)]


@pytest.mark.parametrize(("step", "rule"), [(None, "host-missing"), (40, "peer-closed")])
def test_host_that_never_reported_explains_only_a_run_without_steps(step: int | None, rule: str) -> None:
    run = Run("n1", "n2", step=step, started_age=5.0)
    run.passes(20, *run.hosts)
    run.fails("n1", "n2", step=step)
    run.passes(4)
    (sent,) = run.chat.got
    assert (sent.rule, sent.run_hosts) == (rule, 3)
    assert sent.primary is not None
    if rule == "host-missing":
        assert render(sent.primary.title) == "1 of 3 hosts never reported"
        assert "only n1, n2 reported" in render(sent.primary.why)


def test_hosts_that_do_not_start_are_reported_until_they_do() -> None:
    run = Run("n1", "n2", "n3", step=None, phase="init", quiet=0.0)
    for host in run.hosts.values():
        host.facts.pop("started_age", None)
    began = run.clock.now
    for host in run.hosts.values():
        host.facts["started_age"] = 0.0
    for _ in range(32):
        for host in run.hosts.values():
            host.facts["started_age"] = run.clock.now - began
        run.passes(10, "n1", "n2")
    assert titles(run.chat) == [("finding", "open", "1 of 3 hosts never reported")]
    assert run.chat.got[0].severity == "warning"
    run.passes(10, *run.hosts)
    assert run.chat.got[-1].resolution == "recovered"


def test_host_that_falls_silent_in_a_healthy_run_is_reported_until_it_returns() -> None:
    run = Run("n1", "n2", "n3")
    run.passes(30, *run.hosts)
    run.passes(50, "n1", "n3")
    assert not run.chat.got
    run.passes(20, "n1", "n3")
    assert titles(run.chat) == [("finding", "open", "Host n2 stopped answering")]
    assert (run.chat.got[0].severity, run.chat.got[0].host) == ("warning", "n2")
    run.passes(1000, "n1", "n3")  # the coordinator has forgotten the agent
    assert run.chat.got[-1].status == "open"
    run.passes(10, *run.hosts)
    assert run.chat.got[-1].resolution == "recovered"


def test_silent_host_is_no_news_while_the_run_ends() -> None:
    run = Run("n1", "n2", "n3")
    run.passes(30, *run.hosts)
    run.hosts["n1"].facts["ending"] = Ending("finished", 0)
    run.passes(200, "n1", "n3")
    assert run.chat.got == []


def test_warning_about_a_silent_host_ends_with_the_run() -> None:
    run = Run("n1", "n2", "n3")
    run.passes(30, *run.hosts)
    run.passes(100, "n1", "n3")
    for name in ("n1", "n3"):
        run.hosts[name].facts["ending"] = Ending("finished", 0)
    run.passes(5, "n1", "n3")
    assert [(item.rule, item.status, item.resolution) for item in run.chat.got] == [
        ("host-gone", "open", ""),
        ("host-gone", "resolved", "run-finished"),
    ]


def test_crash_after_a_warning_about_its_host_is_the_same_incident() -> None:
    run = Run("n1", "n2", "n3")
    run.passes(30, *run.hosts)
    run.passes(100, "n1", "n3")
    run.fails("n1", "n3")
    run.passes(5)
    assert len({item.id for item in run.chat.got}) == 1
    assert [(item.kind, item.rule) for item in run.chat.got] == [
        ("finding", "host-gone"),
        ("ended", "host-gone"),
    ]


def test_new_coordinator_continues_a_warning_about_a_host() -> None:
    run = Run("n1", "n2", "n3")
    run.passes(30, *run.hosts)
    reply = run.passes(100, "n1", "n3")
    assert reply is not None and [known.rule for known in reply.ledger] == ["host-gone"]
    for name in ("n1", "n3"):
        run.hosts[name].facts |= {"ledger": reply.ledger, "hosts": reply.hosts}
    run.coordinator = Coordinator([run.chat], name="n3-1", clock=run.clock, wall=run.clock.wall)
    run.passes(100, "n1", "n3")
    run.passes(20, *run.hosts)
    assert [(item.status, item.resolution) for item in run.chat.got] == [
        ("open", ""),
        ("resolved", "recovered"),
    ]


@pytest.mark.parametrize(
    ("lost", "why", "odd", "explains"),
    [
        (90.0, "elsewhere", [2], False),  # rank 2 on another host hangs, and the agent was lost before
        (110.0, "elsewhere", [2], True),
        (90.0, "unreachable", [2], True),
        (90.0, "", [], True),
    ],
)
def test_host_lost_before_a_located_stall_does_not_explain_it(
    lost: float, why: Any, odd: list[int], explains: bool
) -> None:
    stalled = incident(100.0, stacks=StallStacks(100.0, 0.1, [], why=why, odd=odd))
    assert bool(_explaining({"n1": lost}, stalled)) == explains


def test_texts_exist_in_both_languages() -> None:
    run = Run("n1", "n2", step=None, started_age=5.0)
    run.passes(20, *run.hosts)
    run.fails("n1", "n2", step=None)
    run.passes(4)
    gone = Run("n1", "n2", "n3")
    gone.passes(20, *gone.hosts)
    gone.fails("n1", "n3")
    gone.passes(14)
    for sent in (*run.chat.got, *gone.chat.got):
        assert isinstance(sent, Incident) and sent.primary is not None
        for language in LANGUAGES:
            texts = [sent.primary.title, sent.primary.why, *sent.primary.fixes]
            assert all(render(text, language) for text in texts)


def test_replaced_host_is_not_missed() -> None:
    run = Run("n1", "n2", "n3", "n4")
    run.hosts["n4"].rank, run.hosts["n4"].facts["started_age"] = 1, 0.0  # n4 has the ranks of n2
    run.passes(30, "n1", "n2", "n3")
    run.passes(100, "n1", "n3", "n4")
    run.fails("n1", "n3", "n4")
    run.passes(5)
    assert [(item.kind, item.rule) for item in run.chat.got] == [("ended", "peer-closed")]


def test_warning_about_a_host_ends_when_another_host_replaces_it() -> None:
    run = Run("n1", "n2", "n3", "n4")
    run.hosts["n4"].rank, run.hosts["n4"].facts["started_age"] = 1, 0.0  # n4 has the ranks of n2
    run.passes(30, "n1", "n2", "n3")
    run.passes(100, "n1", "n3")
    run.passes(1000, "n1", "n3", "n4")
    assert [(item.rule, item.status, item.resolution) for item in run.chat.got] == [
        ("host-gone", "open", ""),
        ("host-gone", "resolved", "recovered"),
    ]


@pytest.mark.parametrize("gone", [100, 1000])
def test_replaced_host_is_recognized_after_a_takeover(gone: float) -> None:
    """A new coordinator, or one that has forgotten the agent of n2, still knows the ranks of n2."""
    run = Run("n1", "n2", "n3", "n4")
    run.hosts["n4"].rank, run.hosts["n4"].facts["started_age"] = 1, 0.0
    run.passes(30, "n1", "n2", "n3")
    reply = run.passes(gone, "n1", "n3")
    assert reply is not None
    if gone == 100:
        run.coordinator = Coordinator([run.chat], name="n3-1", clock=run.clock, wall=run.clock.wall)
        for name in ("n1", "n3"):
            run.hosts[name].facts |= {"ledger": reply.ledger, "hosts": reply.hosts}
        run.passes(60, "n1", "n3")
    assert [item.status for item in run.chat.got] == ["open"]
    run.passes(200, "n1", "n3", "n4")
    assert [item.status for item in run.chat.got] == ["open", "resolved"]


def test_new_coordinator_does_not_miss_a_replaced_host() -> None:
    run = Run("n1", "n2", "n3", "n4")
    run.hosts["n4"].rank, run.hosts["n4"].facts["started_age"] = 1, 0.0
    run.passes(30, "n1", "n2", "n3")
    reply = run.passes(30, "n1", "n3", "n4")
    assert reply is not None and sorted(reply.hosts) == ["n1", "n3", "n4"]
    run.coordinator = Coordinator([run.chat], name="n3-1", clock=run.clock, wall=run.clock.wall)
    run.hosts["n1"].facts["hosts"] = {**reply.hosts, "n2": "1"}  # of an earlier reply
    run.hosts["n3"].facts["hosts"] = reply.hosts
    run.passes(200, "n1", "n3", "n4")
    assert not run.chat.got


def test_outage_of_the_coordinator_ends_no_warning() -> None:
    run = Run("n1", "n2", "n3")
    run.passes(30, *run.hosts)
    run.passes(100, "n1", "n3")
    run.passes(40)
    run.passes(20, "n1", "n3")
    assert [(item.rule, item.status) for item in run.chat.got] == [("host-gone", "open")]


@pytest.mark.parametrize(
    ("ending", "resolution"),
    [
        (Ending("finished", 0), "run-finished"),
        (Ending("interrupted", 130, "SIGINT"), "run-stopped"),
        (Ending("failed", 1), "run-failed"),
    ],
)
def test_warning_about_missing_hosts_ends_once_with_the_run(ending: Ending, resolution: str) -> None:
    run = Run("n1", step=None, phase="init", started_age=400.0)
    run.passes(20, "n1")
    run.hosts["n1"].facts["ending"] = ending
    run.passes(1, "n1")
    run.passes(20)
    assert [(item.rule, item.status, item.resolution) for item in run.chat.got] == [
        ("host-missing", "open", ""),
        ("host-missing", "resolved", resolution),
    ]


def test_hosts_are_not_missed_after_the_end_of_the_run() -> None:
    run = Run("n1", step=None, phase="init", started_age=200.0)
    run.passes(20, "n1")
    run.hosts["n1"].facts |= {"ending": Ending("failed", 1), "started_age": 400.0}
    run.passes(1, "n1")
    run.passes(20)
    assert not run.chat.got


def test_coordinator_leaves_when_no_successor_would_miss_the_ended_hosts() -> None:
    """The command ends on n1, which then leaves, and fails on n2 and n3 because they lost n1."""
    run = Run("n1", "n2", "n3")
    replies = {}
    for _ in range(3):
        for name in run.hosts:
            replies[name] = run.passes(1, name)
    run.hosts["n1"].facts["ending"] = Ending("finished", 0)
    run.passes(1, "n1")
    for name in ("n2", "n3"):
        assert run.coordinator.is_settled and not run.coordinator.is_known
        replies[name] = run.passes(1, name)
    assert run.coordinator.is_known
    run.coordinator = Coordinator([run.chat], name="n2-1", clock=run.clock, wall=run.clock.wall)
    for name in ("n2", "n3"):
        reply = replies[name]
        assert reply is not None
        run.hosts[name].facts["hosts"] = reply.hosts
    run.passes(100, "n2", "n3")
    run.fails("n2", "n3")
    run.passes(20)
    assert [(item.rule, item.hosts) for item in run.chat.got] == [("peer-closed", ["n2", "n3"])]


def test_coordinator_does_not_wait_for_silent_hosts_to_learn_of_an_end() -> None:
    run = Run("n1", "n2", "n3")
    run.passes(1, *run.hosts)
    run.passes(40, "n1", "n3")
    run.hosts["n1"].facts["ending"] = Ending("finished", 0)
    run.passes(2, "n1", "n3")
    assert run.coordinator.is_known


@pytest.mark.parametrize(
    ("severity", "sharing", "rules"),
    [
        ("critical", ["n2"], ["cuda-oom"]),  # the end of this incident reports that n2 is gone
        ("critical", ["n1", "n2"], ["cuda-oom", "host-gone"]),
        ("warning", ["n2"], ["cuda-oom", "host-gone"]),
        ("warning", ["n1", "n2"], ["cuda-oom", "host-gone"]),
    ],
)
def test_only_the_hosts_own_critical_incident_replaces_the_warning(
    severity: str, sharing: list[str], rules: list[str]
) -> None:
    run = Run("n1", "n2", "n3")
    run.passes(20, *run.hosts)
    for name in sharing:
        host = run.hosts[name]
        host.has(incident(host.wall(), kind="finding", rule="cuda-oom", severity=severity))
    run.passes(10, *run.hosts)
    run.passes(1000, "n1", "n3")
    assert sorted({event.rule for item in run.chat.got for event in item.history}) == rules


def test_wait_for_the_reports_of_other_hosts_is_limited() -> None:
    """The hosts fail one after the other, so after each failure, the next report of a host is awaited."""
    run = Run(*(f"n{number}" for number in range(1, 41)))
    run.passes(21, *run.hosts)
    names, failed_at = list(run.hosts), run.clock.now
    for second in range(60):
        if second % 5 == 0:
            run.fails(names[second // 5])
        for name in names[second % 10 :: 10]:
            run.coordinator.take(run.hosts[name].report())
        run.passes(1)
        if run.chat.got:
            break
    assert run.chat.got[0].rule == "peer-closed"
    assert 13.0 < run.clock.now - failed_at <= AWAITED_SECONDS == 16.0


@pytest.mark.parametrize(("quiet", "seconds"), [(0.0, 13.0), (28.0, 10.0), (30.0, 10.0)])
def test_host_is_overdue_only_after_an_unusual_silence(quiet: float, seconds: float) -> None:
    run = Run("n1", quiet=quiet)
    run.coordinator.take(run.hosts["n1"].report())
    (agent,) = run.coordinator._agents.values()
    assert isinstance(agent, KnownAgent)
    assert [agent.is_overdue(run.clock.now + late) for late in (seconds, seconds + 0.1)] == [False, True]
