"""Agents of one host post together: one agent carries all reports, and another can replace it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from clustercases import incident
from clusterhosts import Cluster, cluster, report
from waiting import wait_until

from stallwatch_exporter.cluster import client, host
from stallwatch_exporter.cluster.client import HostReports
from stallwatch_exporter.cluster.signing import Answer
from stallwatch_exporter.cluster.wire import AgentReport, Reply


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Cluster]:
    """Yield a run of two hosts."""
    with cluster(tmp_path, hosts=2) as made:
        yield made


class Carrier:
    """Carrier that records reports and sends none."""

    def __init__(self) -> None:
        self.now = 0.0
        self.posts: list[list[AgentReport]] = []
        self.answers = True
        self.host = HostReports(self.carry, lambda: self.now)

    def carry(self, reports: Sequence[AgentReport]) -> Answer | None:
        self.posts.append([*reports])
        return Answer(reply=Reply(coordinator=f"post {len(self.posts)}")) if self.answers else None

    def agents(self) -> list[list[str]]:
        return [[item.agent for item in post] for post in self.posts]


def test_agents_of_one_host_share_a_socket_without_a_port(two: Cluster) -> None:
    first = two.start(0)
    ranks = [two.start(1, agent=f"rank{rank}") for rank in range(3)]
    replies = [item.post() for item in (first, *ranks)]
    assert first.merges.agents == ["agent0", "rank0", "rank1", "rank2"]
    assert [reply.coordinator for reply in replies if reply] == ["agent0"] * 4
    assert [rank.backing.address != "" for rank in ranks] == [True, False, False]
    assert {report.address for report in first.merges.reports[1:]} == {f"127.0.0.2:{two.port}"}


def test_another_agent_of_the_host_replaces_the_ended_relay(two: Cluster) -> None:
    first, ranks = two.start(0), [two.start(1, agent=f"rank{rank}") for rank in range(3)]
    assert all(item.post() for item in (first, *ranks))
    ranks[0].backing.close()
    assert ranks[2].post() and ranks[1].post(phase="save")
    assert first.merges.agents[4:] == ["rank2", "rank1"]
    assert (ranks[1].backing.address, ranks[2].backing.address) == ("", f"127.0.0.2:{two.port}")


def test_agent_posts_directly_if_the_relay_of_its_host_hangs(
    two: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of the carrying agent is stopped: the kernel accepts connections that are never read."""
    monkeypatch.setattr(client, "_SIBLING_SECONDS", 0.2)
    first, rank = two.start(0), two.start(1)
    name = host.socket_name(two.home / "join", rank.key, rank.host_id)
    assert name is not None
    hung = host.bind(name)
    assert hung is not None
    with hung:
        assert first.post() and rank.post() and rank.post()
        hung.setblocking(False)
        hung.accept()[0].close()
        with pytest.raises(BlockingIOError):  # the second post has not tried to connect again
            hung.accept()
    assert first.merges.agents == ["agent0", "agent1", "agent1"]
    assert rank.notes == [
        "cannot use the agent that posts the reports of this host (timed out); "
        "this agent posts its own reports"
    ]
    two.now += client._AVOIDED_SECONDS
    assert rank.post() and rank.backing._socket is not None


def test_agents_of_one_host_need_no_secret(two: Cluster) -> None:
    home = two.home / "state"
    home.mkdir()
    (home / "join").touch()  # the folder cannot be created
    ranks = [two.start(1, agent=f"rank{rank}", secret="", home=home) for rank in range(2)]
    assert all(rank.post() for rank in ranks)
    assert ranks[0].merges.agents == ["rank0", "rank1"]
    assert [len(rank.notes) for rank in ranks] == [1, 0]


def test_report_without_changes_waits_for_the_next_post() -> None:
    carrier = Carrier()
    assert carrier.host.post(report("own"), own=True)
    assert carrier.host.post(report("rank1"), own=False)  # a first report does not wait
    carrier.now += 3.0
    reply = carrier.host.post(report("rank1", number=2, quiet=1.0, started_age=50.0), own=False)
    assert reply is not None and reply.coordinator == "post 2"
    carrier.now += 4.0
    assert carrier.host.post(report("own", number=2), own=True)
    assert carrier.agents() == [["own"], ["rank1"], ["rank1", "own"]]
    kept = carrier.posts[2][0]
    # ages are updated to the time of the post
    assert (kept.number, kept.quiet, kept.started_age) == (2, 5.0, 54.0)


def test_report_with_changes_is_posted_at_once() -> None:
    carrier = Carrier()
    assert carrier.host.post(report("rank1"), own=False)
    assert carrier.host.post(report("rank1", number=2, phase="save"), own=False)
    assert carrier.host.post(report("rank1", number=3, phase="save", ledger=[incident(1.0)]), own=False)
    assert carrier.agents() == [["rank1"]] * 3


def test_quiet_agents_of_one_host_share_one_post_a_second() -> None:
    carrier = Carrier()
    ranks = [f"rank{rank}" for rank in range(4)]
    for rank in ranks:
        assert carrier.host.post(report(rank), own=False)
    del carrier.posts[:]
    for _ in range(3):
        carrier.now += 1.0
        for rank in ranks:
            assert carrier.host.post(report(rank, quiet=29.0, threshold=30.0), own=False)
    assert carrier.agents()[0] == ["rank0"]
    assert [sorted(post) for post in carrier.agents()[1:]] == [ranks] * 2


def test_undelivered_reports_are_sent_with_the_next_post() -> None:
    carrier = Carrier()
    carrier.answers = False
    assert carrier.host.post(report("rank1"), own=False) is None
    carrier.answers = True
    assert carrier.host.post(report("own"), own=True)
    assert carrier.agents() == [["rank1"], ["rank1", "own"]]


def test_reports_that_arrive_during_a_post_share_the_next_post() -> None:
    carrier = Carrier()
    going, go_on = threading.Event(), threading.Event()
    carry = carrier.carry

    def slow(reports: Sequence[AgentReport]) -> Answer | None:
        going.set()
        assert go_on.wait(60)
        return carry(reports)

    carrier.host = HostReports(slow, lambda: carrier.now)
    replies: list[Reply | None] = []
    threads = [
        threading.Thread(target=lambda name=name: replies.append(carrier.host.post(report(name), own=False)))
        for name in ("a", "b", "c")
    ]
    threads[0].start()
    assert going.wait(60)
    threads[1].start()
    threads[2].start()
    wait_until(lambda: len(carrier.host._waiting) == 2)
    go_on.set()
    for thread in threads:
        thread.join()
    assert [sorted(post) for post in carrier.agents()] == [["a"], ["b", "c"]]
    assert sorted(reply.coordinator for reply in replies if reply) == ["post 1", "post 2", "post 2"]


def test_agents_above_the_limit_of_a_host_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_REPORTS", 2)
    carrier = Carrier()
    carrier.answers = False
    replies = [carrier.host.post(report(name), own=False) for name in ("a", "b", "c", "a")]
    assert replies == [None] * 4
    assert carrier.agents() == [["a"], ["a", "b"], ["a", "b"]]


def test_stale_socket_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no abstract socket names."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.chdir(tmp_path)  # a relative path is short enough
    name = host.socket_name(Path("join"), "key", "host")
    assert name is not None
    killed = host.bind(name)
    assert killed is not None and host.bind(name) is None
    killed.close()
    with host.bind(name) as taken:  # type: ignore[union-attr]
        assert taken.getsockname() == name
    assert host.socket_name(Path("x" * 100), "key", "host") is None


def test_host_id_depends_on_name_boot_and_network(monkeypatch: pytest.MonkeyPatch) -> None:
    own = host.host_id("n1")
    assert own == host.host_id("n1") != host.host_id("n2")
    monkeypatch.setattr(host, "namespace", lambda kind: f"another boot/{kind}:[1]")
    assert host.host_id("n1") != own
    monkeypatch.setattr(host, "namespace", lambda _: "")
    assert len(host.host_id("n1")) == 12


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        ("n1", True),
        ("N1.cluster.local", True),
        ("n11", False),
        ("127.0.0.1", False),
        ("10.99.1.1", True),
        ("", False),
    ],
)
def test_names_of_this_host_are_recognized(name: str, is_ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    address = SimpleNamespace(address="10.99.1.1")
    monkeypatch.setattr(host.psutil, "net_if_addrs", lambda: {"eth0": [address]})
    assert host.is_this_host(name, "n1") is is_ours


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("n1", ("n1", None)),
        ("n1:29500", ("n1", 29500)),
        ("[fd00::1]:80", ("fd00::1", 80)),
        ("fd00::1", ("fd00::1", None)),
        ("n1:", ("n1", None)),
        ("n1:99999", ("n1", None)),
        ("", ("", None)),
    ],
)
def test_addresses_are_split_into_host_and_port(text: str, parts: tuple[str, int | None]) -> None:
    assert host.split_address(text) == parts
    if parts[1] is not None:
        assert host.join_address(parts[0], parts[1]) == text
