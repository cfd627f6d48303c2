"""Agents report step durations, and the run gets one incident about the host that the others wait for."""

from __future__ import annotations

import random

import msgspec
import pytest
from clustercases import Chat, Clock, Host, incident

from stallwatch_exporter.cluster.coordinator import Coordinator
from stallwatch_exporter.cluster.slowness import MOST_STEPS, UnacknowledgedSteps
from stallwatch_exporter.cluster.wire import AgentReport, Paces, Post
from stallwatch_rules.decoding import from_json
from stallwatch_rules.endings import Ending
from stallwatch_rules.judgements.slow_hosts import RankStep
from stallwatch_rules.locale import render as in_words

STEPS = 10  # steps of one second that a host reports at once


class Run:
    """Three hosts with two ranks each, which report from the pace books of agents."""

    def __init__(self) -> None:
        self.clock, self.chat, self.costs = Clock(), Chat(), list[float]()
        self.draw = random.Random(1)
        self.hosts = [Host(f"n{at}", at, self.clock) for at in range(3)]
        self.books = [UnacknowledgedSteps() for _ in self.hosts]
        self.slow: dict[int, float] = {}  # slow-down factors by rank
        self.tokens: dict[int, int] = {}
        self.step = 0
        self.coordinator = self.another(self.chat)

    def another(self, chat: Chat) -> Coordinator:
        return Coordinator(
            [chat], name="n0-1", clock=self.clock, wall=self.clock.wall, slowdown=self.costs.append
        )

    def trains(self, steps: int, *, posting: tuple[int, ...] = (0, 1, 2), acknowledged: bool = True) -> None:
        for _ in range(steps // STEPS):
            for _ in range(STEPS):
                self.step += 1
                for rank in range(6):
                    own = 0.7 * self.draw.lognormvariate(0, 0.02) * self.slow.get(rank, 1.0)
                    self.books[rank // 2].take(rank, self.step, RankStep(own, 1.2, self.tokens.get(rank, 0)))
            self.clock.now += STEPS
            for at in posting:
                report = self.report(at)
                self.coordinator.take(report)
                if acknowledged:
                    self.books[at].acknowledged(report.number)
            self.coordinator.step()
            self.clock.now += 3.0  # time for the other hosts to report on a new incident
            self.coordinator.step()

    def report(self, at: int, **facts: object) -> AgentReport:
        host = self.hosts[at]
        report = host.report(**facts)
        posted = Post(reports=[msgspec.structs.replace(report, paces=self.books[at].report(report.number))])
        return from_json(msgspec.json.encode(posted), Post).reports[0]


def test_slow_host_is_one_warning_that_closes_when_it_catches_up() -> None:
    run = Run()
    run.trains(120)
    assert not run.chat.got
    run.slow = {2: 1.3, 3: 1.3}
    run.trains(30)
    assert run.chat.stages == [("sft-8123.0/finding/straggler-slow-node/1", "open")]
    sent = run.chat.got[0]
    assert (sent.severity, sent.harm, sent.host, sent.rank, sent.hosts) == (
        "warning",
        "degrading",
        "n1",
        None,
        ["n1"],
    )
    words = in_words(sent.note, "en")
    assert words.startswith("Host n1 takes ")
    assert "n1" in in_words(sent.note, "zh")
    assert run.costs[-1] == pytest.approx(0.7 * 0.3 / 1.2, abs=0.03)
    run.slow = {}
    run.trains(60)
    assert [stage for _, stage in run.chat.stages] == ["open", "resolved"]
    assert run.chat.got[-1].resolution == "recovered"
    assert run.costs[-1] == 0.0
    run.slow = {0: 1.5, 1: 1.5}
    run.trains(60)
    assert [item.split("/")[-1] for item, _ in run.chat.stages] == ["1", "1", "2"]
    assert run.chat.got[-1].host == "n0"


def test_single_late_rank_is_named_with_its_host() -> None:
    run = Run()
    run.trains(120)
    run.slow = {5: 1.4}
    run.trains(40)
    assert [(item.host, item.rank) for item in run.chat.got[:1]] == [("n2", 5)]
    assert in_words(run.chat.got[0].note, "en").startswith("Rank 5 on n2 takes ")


def test_host_with_more_tokens_is_an_imbalance() -> None:
    run = Run()
    run.tokens = dict.fromkeys(range(6), 4096)
    run.trains(120)
    run.slow, run.tokens = {2: 1.3, 3: 1.3}, {**run.tokens, 2: 5325, 3: 5325}
    run.trains(60)
    assert [in_words(item.note, "en")[:28] for item in run.chat.got[:1]] == ["Host n1 receives more tokens"]


def test_repeated_steps_count_once() -> None:
    run, other = Run(), Run()
    run.trains(200)
    other.trains(200, acknowledged=False)
    assert other.coordinator._slowness._watched.steps == run.coordinator._slowness._watched.steps > 100


def test_hosts_without_reports_are_not_compared() -> None:
    run = Run()
    run.trains(60)
    before = run.coordinator._slowness._watched.steps
    run.trains(40, posting=(0, 2))
    assert run.coordinator._slowness._watched.steps == before
    run.trains(60, posting=(0, 2))
    assert run.coordinator._slowness._watched.steps >= before + 30, "the host is lost: the others go on"


def test_warning_closes_with_the_run() -> None:
    run = Run()
    run.trains(120)
    run.slow = {2: 1.3, 3: 1.3}
    run.trains(40)
    for at in (1, 0, 2):
        run.coordinator.take(run.report(at, ending=Ending("finished", 0), ended_age=0.0))
        run.coordinator.step()
    assert [stage for _, stage in run.chat.stages] == ["open", "resolved"]
    assert run.chat.got[-1].resolution == "run-finished"


def test_new_attempt_restarts_the_comparison() -> None:
    run = Run()
    run.trains(120)
    run.slow = {2: 1.3, 3: 1.3}
    run.trains(40)
    for host in run.hosts:
        host.facts["attempt"] = 1
    run.slow = {}
    run.trains(10)
    assert [stage for _, stage in run.chat.stages] == ["open", "resolved"]
    assert run.coordinator._slowness._watched.steps < 20


@pytest.mark.parametrize("goes_on", [True, False])
def test_new_coordinator_continues_the_same_incident(goes_on: bool) -> None:
    run = Run()
    run.trains(120)
    run.slow = {2: 1.3, 3: 1.3}
    run.trains(40)
    ledger = run.coordinator.take(run.report(0)).ledger
    assert len(ledger) == 1
    run.hosts[0].facts["ledger"] = ledger
    chat = Chat()
    run.coordinator = run.another(chat)
    run.slow = run.slow if goes_on else {}
    run.trains(150)
    if goes_on:
        run.slow = {}
        assert not {stage for _, stage in chat.stages} & {"resolved"}
        run.trains(80)
    assert [stage for stage in chat.stages if stage[1] == "resolved"] == [(ledger[0].id, "resolved")]
    assert {item.id for item in chat.got} == {ledger[0].id}


def test_unacknowledged_steps_are_kept() -> None:
    book = UnacknowledgedSteps()
    book.take(3, 1, RankStep(0.50004, 1.0))
    book.take(3, 1, RankStep(0.6, 1.0))  # the same record, complete
    assert book.report(1) == [Paces(3, 0, [1], [0.5], [1.0])]
    book.take(3, 2, RankStep(0.5, 1.0, 4096.0))
    book.acknowledged(1)
    assert book.report(2) == [Paces(3, 1, [2], [0.5], [1.0], [4096])]
    book.acknowledged(2)
    assert book.report(3) == []


def test_kept_steps_are_bounded_and_short_steps_are_sampled() -> None:
    book = UnacknowledgedSteps()
    for step in range(1000):
        book.take(0, step, RankStep(0.5, 1.0))
        book.take(1, step, RankStep(0.02, 0.03))
    long, short = book.report(1)
    assert len(long.steps) == MOST_STEPS
    assert long.before == 1000 - MOST_STEPS
    assert short.steps == list(range(0, 1000, 8))


def test_lists_of_different_lengths_are_read_up_to_the_shortest() -> None:
    run = Run()
    run.trains(60)
    broken = Paces(0, 10**6, [1, 2, 3], [0.5], [1.0, 1.0], [7, 8, 9, 10])
    run.coordinator.take(run.hosts[0].report(paces=[broken]))
    assert run.coordinator._slowness._seen["n0-1", 0] == 10**6 + 1


def test_late_rank_reported_by_its_host_joins_the_same_incident() -> None:
    run = Run()
    run.trains(120)
    run.slow = {5: 1.6}
    run.trains(20)
    host = run.hosts[2]
    host.has(
        incident(
            host.wall(), kind="finding", rule="straggler-slow-node", severity="warning", run="sft-8123.0"
        )
    )
    run.trains(30)
    assert len({item.id for item in run.chat.got}) == 1
    assert run.chat.got[-1].aliases == [
        "n2-1 sft-8123.0/finding/straggler-slow-node/1",
        "run sft-8123.0/finding/straggler-slow-node/1",
    ]
