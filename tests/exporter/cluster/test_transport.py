"""Reports reach one merger of the run over real sockets, even if hosts are lost."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clusterhosts import Cluster, Host, cluster, hasty, report
from ports import free_port
from waiting import wait_until

from stallwatch_exporter.cluster import client, peer, server
from stallwatch_exporter.cluster.coordinator import Coordinator
from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.cluster.peer import RETRY_SECONDS
from stallwatch_exporter.cluster.wire import Reply
from stallwatch_rules.stacks.records import StackGroup, StallStacks


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    """Yield a run of three hosts."""
    with cluster(tmp_path) as made:
        yield made


def test_first_host_merges_the_posts_of_all_hosts(three: Cluster) -> None:
    first, second, third = (three.start(node) for node in range(3))
    replies = [host.post() for host in (first, second, third, second)]
    assert first.merges.agents == ["agent0", "agent1", "agent2", "agent1"]
    assert [reply.coordinator for reply in replies if reply] == ["agent0"] * 4
    assert replies[2] is not None and replies[2].acknowledged == {"agent2": 1}
    assert first.notes == second.notes == third.notes == []


def test_report_contains_the_address_of_its_host(three: Cluster) -> None:
    first, second = three.start(0), three.start(1)
    everywhere = three.start(2, host="", port=free_port(), identity=three.identity(2), address=":1")
    assert first.post() and second.post()
    assert [report.address for report in first.merges.reports] == [
        f"127.0.0.1:{three.port}",
        f"127.0.0.2:{three.port}",
    ]
    assert everywhere.post()  # at another port it finds no agent, and merges its own reports
    assert everywhere.merges.reports[0].address == f"n2{everywhere.backing.address}"


def test_agent_on_all_interfaces_is_reached_at_the_source_of_its_posts(three: Cluster) -> None:
    first = three.start(0)
    port = free_port()
    other = three.start(1, host="", port=port, address=f"127.0.0.1:{three.port}")
    assert first.post() and other.post()
    assert first.merges.reports[1].address == f"127.0.0.1:{port}"


def test_next_host_merges_after_the_first_is_lost(three: Cluster) -> None:
    first, second, third = (three.start(node) for node in range(3))
    assert first.post() and second.post() and third.post()
    first.backing.close()
    replies = [second.post(), third.post(), third.post()]
    assert [reply.coordinator for reply in replies if reply] == ["agent1"] * 3
    assert second.merges.agents == ["agent1", "agent2", "agent2"]
    assert third.merges.agents == []


def test_host_checks_a_preferred_coordinator_before_it_refers_to_it(three: Cluster) -> None:
    """The third host knows that the first one is gone, and the second host does not."""
    first, second, third = (three.start(node) for node in range(3))
    assert first.post() and second.post()
    first.backing.close()
    three.now += 1.0
    reply = third.post()
    assert reply is not None and reply.coordinator == "agent1"
    assert second.merges.agents == ["agent2"]


def test_first_node_merges_without_asking_others(three: Cluster) -> None:
    """The master's address is the name of a service, not a name of the host."""
    identity = RunIdentity(key="ab", job="1", origin="kubeflow", master="job-master-0:29500", node=0)
    first = three.start(0, identity=identity)
    assert first.post() and first.backing._peers == {}


def test_first_host_merges_again_after_its_return(three: Cluster) -> None:
    first, second, third = (three.start(node) for node in range(3))
    assert first.post() and second.post() and third.post()
    first.backing.close()
    assert third.post() and second.post()
    returned = three.start(0, agent="returned")
    assert returned.post()
    # a post does not search for the first host each time
    assert third.post() and returned.merges.agents == ["returned"]
    three.now += RETRY_SECONDS
    for host in (second, third):
        wait_until(lambda host=host: host.post() and host.agent in returned.merges.agents)


def test_first_host_that_starts_late_soon_merges(three: Cluster) -> None:
    second = three.start(1)
    reply = second.post()
    assert reply is not None and reply.coordinator == "agent1"
    first = three.start(0)
    assert first.post()
    three.now += 1.0
    wait_until(lambda: second.post() and "agent1" in first.merges.agents)


def test_ended_agents_do_not_accumulate(three: Cluster) -> None:
    """A restarted agent listens at another port, and counts as another member."""
    second = three.start(1)
    for port in range(1, 1000):
        second.backing._peer("127.0.0.1", (port,))
        second.backing._ahead()
    assert len(second.backing._peers) < 100


@pytest.mark.parametrize("is_kept", [True, False])
def test_new_agent_at_the_same_address_receives_the_next_post(is_kept: bool, three: Cluster) -> None:
    """The connection to the old agent may be open: the new agent takes no report meant for the old one."""
    first, second = three.start(0), three.start(1)
    assert first.post() and second.post()
    first.backing.close()
    if not is_kept:
        for other in second.backing._peers.values():
            other.close_connection()
    returned = three.start(0, agent="returned")
    assert returned.post() and second.post()
    assert returned.merges.agents == ["returned", "agent1"]
    assert second.merges.agents == []


def test_host_refers_to_a_preferred_coordinator(three: Cluster) -> None:
    """The third host got another name for the first host, which leads nowhere."""
    first, second = three.start(0), three.start(1)
    assert first.post() and second.post()
    hosts = ("127.0.0.99", *three.identity(2).hosts[1:])
    third = three.start(2, identity=RunIdentity(key=first.key, job="1", origin="slurm", hosts=hosts, node=2))
    assert third.post()
    assert first.merges.agents == ["agent0", "agent1", "agent2"]
    assert second.merges.agents == third.merges.agents == []


def test_unresponsive_host_is_skipped(three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent is stopped, or behind a link that loses all data after the connection."""
    hasty(monkeypatch, 0.3)
    with socket.create_server(("127.0.0.1", three.port)):
        second, third = three.start(1), three.start(2)
        replies = [second.post(), third.post()]
    assert [reply.coordinator for reply in replies if reply] == ["agent1", "agent1"]


def test_each_side_of_a_partition_has_a_coordinator(three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (three.start(node) for node in range(3))
    assert first.post() and second.post() and third.post()
    connect = peer.Connection.connect
    cut: set[str] = set()

    def over_the_link(connection: peer.Connection) -> None:
        if connection._address[0] in cut:
            raise ConnectionRefusedError
        connect(connection)

    monkeypatch.setattr(peer.Connection, "connect", over_the_link)
    cut.update(three.address(node) for node in (0, 1))
    for other in third.backing._peers.values():
        other.close_connection()
    reply = third.post()
    assert reply is not None and reply.coordinator == "agent2"
    cut.clear()
    three.now += RETRY_SECONDS
    wait_until(lambda: (reply := third.post()) and reply.coordinator == "agent0")


def unlisted(node: int) -> RunIdentity:
    """Return the identity of a host whose scheduler names only the first host."""
    return RunIdentity(key="ab", job="1", origin="kubeflow", master="127.0.0.1:29500", node=node)


def test_unlisted_hosts_are_tried_in_the_order_of_their_node_numbers(three: Cluster) -> None:
    hosts = [three.start(node, identity=unlisted(node)) for node in range(3)]
    for host in (*hosts, *hosts):
        assert host.post()
    assert hosts[0].merges.agents == ["agent0", "agent1", "agent2"] * 2
    hosts[0].backing.close()
    assert hosts[1].post() and hosts[2].post()
    assert hosts[1].merges.agents == ["agent1", "agent2"]


def test_hosts_missing_from_a_new_coordinators_list_stay_known(three: Cluster) -> None:
    """The new coordinator first lists only the host that posts; that host must not merge by itself then."""
    hosts = [three.start(node, identity=unlisted(node)) for node in range(4)]
    for host in (*hosts, *hosts):
        assert host.post()
    hosts[0].backing.close()
    three.now += 1.0  # so that the second host looks whether the first is there
    replies = [hosts[node].post() for node in (3, 2, 3, 1, 2)]
    assert [reply.coordinator for reply in replies if reply] == ["agent1"] * 5
    assert hosts[2].backing._missing.keys() == {hosts[0].host_id}
    three.now += client._MISSING_SECONDS
    assert hosts[0].host_id not in hosts[2].backing._known()
    assert hosts[2].post() and hosts[2].backing._missing == {}


def test_configured_coordinator_has_precedence_over_hosts(three: Cluster) -> None:
    service = three.start(5, agent="service", identity=three.identity(0))
    hosts = [three.start(node, address=f"127.0.0.6:{three.port}") for node in range(2)]
    assert service.post()
    assert all(host.post() for host in hosts)
    assert service.merges.agents == ["service", "agent0", "agent1"]
    service.backing.close()
    assert all(host.post() for host in hosts)
    assert hosts[0].merges.agents == ["agent0", "agent1"]


def test_notice_names_a_configured_coordinator_that_does_not_respond(three: Cluster) -> None:
    first = three.start(0, address=f"127.0.0.9:{free_port()}")
    assert first.post() is not None
    assert not first.notes, "it may be about to start"
    three.now += 31.0
    assert first.post() is not None
    assert [note for note in first.notes if "does not respond" in note]


@pytest.mark.parametrize(
    "banner",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n# HELP stallwatch_up\n",
    ],
)
def test_ports_in_use_are_skipped(banner: bytes, three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's key determines the ports; a program and an agent of another run use the first two."""
    monkeypatch.setattr(client, "FIRST_PORT", free_port())
    monkeypatch.setattr(client, "_PORTS", client._TRIES)
    first, second = three.start(0, port=0), three.start(1, port=0)
    ports = first.backing._run_ports

    class Other(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(banner)

    with socketserver.ThreadingTCPServer(("127.0.0.1", ports[0]), Other) as program:
        threading.Thread(target=program.serve_forever, daemon=True).start()
        other = three.start(0, key="another", port=ports[1], host_id="x")
        assert other.post() and first.post() and second.post()
        program.shutdown()
    assert first.merges.agents == ["agent0", "agent1"]
    assert other.merges.agents == ["agent0"]
    assert [*other.notes, *first.notes, *second.notes] == []


def test_notice_names_the_port_that_a_different_program_uses(three: Cluster) -> None:
    class Metrics(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"HTTP/1.0 200 OK\r\n\r\n# HELP stallwatch_up\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Metrics) as program:
        threading.Thread(target=program.serve_forever, daemon=True).start()
        port = program.server_address[1]
        second = three.start(1, address=f"127.0.0.1:{port}")
        assert second.post()
        program.shutdown()
    assert second.notes == [
        f"127.0.0.1:{port} does not accept the reports of this host: its response is not signed with the "
        "secret of the run, so a different program might use this port"
    ]


def test_refusal_reaches_only_the_refused_agent(three: Cluster) -> None:
    first, second = three.start(0), three.start(1)
    first.merges.refused["agent1"] = "rank 3 is claimed by two agents"
    replies = [first.post(), second.post()]
    assert [reply.refused for reply in replies if reply] == ["", "rank 3 is claimed by two agents"]


def test_coordinator_that_fails_to_merge_is_skipped(three: Cluster) -> None:
    first, second = three.start(0), three.start(1)
    first.merges.broken = RuntimeError("out of order")
    assert first.post() is None
    reply = second.post()
    assert reply is not None and reply.coordinator == "agent1"
    assert first.notes == ["the reports of the run could not be merged (RuntimeError: out of order)"]
    (note,) = second.notes
    assert note.endswith(
        "does not accept the reports of this host: it failed to merge the reports; "
        "see the messages of that agent"
    )


def test_closed_client_posts_nothing(three: Cluster) -> None:
    first = three.start(0)
    assert first.post()
    first.backing.close()
    assert first.post() is None


def test_large_reports_are_posted_in_parts(three: Cluster) -> None:
    """A post may hold one of the three reports; the stacks of a fourth agent are too large."""
    notes: list[str] = []
    large = [report(f"agent{number}", ranks="7" * (600 << 10)) for number in range(3)]
    stacks = StallStacks(1.0, 0.1, [StackGroup([1], "code", frames=["f" * (1 << 20)])])
    too_large = report("agent3", stacks=stacks, ranks="0-7")
    parts = [*client._parts([*large, too_large], server.Notices(notes.append))]
    assert [[item.agent for item in part] for part in parts] == [[f"agent{number}"] for number in range(4)]
    assert (parts[3][0].stacks, parts[3][0].ranks) == (None, "0-7")
    assert notes == ["the report of this host is too large, so it is sent without the stacks of the ranks"]


def test_coordinator_handles_posts_of_128_hosts(tmp_path: Path) -> None:
    with cluster(tmp_path, hosts=128) as made:
        hosts = [made.start(node) for node in range(128)]
        assert hosts[0].post()
        with ThreadPoolExecutor(32) as pool:
            replies: list[Reply | None] = []
            for _ in range(3):
                replies += pool.map(lambda host: host.post(), hosts[1:])
        assert sorted(hosts[0].merges.agents) == sorted(["agent0", *[host.agent for host in hosts[1:]] * 3])
        assert [reply.coordinator for reply in replies if reply] == ["agent0"] * (3 * 127)


def test_member_list_is_sent_only_after_a_change(three: Cluster) -> None:
    first = three.start(0, merges=Coordinator([], name="agent0", clock=lambda: three.now))
    second = three.start(1)

    def sent(*hosts: Host) -> list[int | None]:
        replies = []
        for host in hosts:
            three.now += 5.0
            reply = host.post()
            assert reply is not None
            replies.append(None if reply.members is None else len(reply.members))
        return replies

    assert sent(first, first) == [1, None]
    assert sent(second, second, first, first) == [2, None, 2, None]
    assert [member.host for member in first.backing._members.values()] == ["n0", "n1"]
    assert sent(second, first) == [None, None]
