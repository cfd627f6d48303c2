"""Agents join their run when its first ranks name it, if neither the environment nor the command does."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from clustercases import Chat, incident
from waiting import wait_until

from stallwatch_exporter.cluster import joining
from stallwatch_exporter.cluster.backing import Merges
from stallwatch_exporter.cluster.coordinator import Coordinator
from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.cluster.joining import Joining
from stallwatch_exporter.cluster.wire import AgentReport, Reply
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.rings.probing import Probing
from stallwatch_exporter.runs.runfolder import RUN_INCIDENTS, RunFolder, read_info
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.settings import ExporterSettings, JoinSettings
from stallwatch_exporter.watching.agent import Agent
from stallwatch_exporter.watching.incidents import read_journal
from stallwatch_rules.pages.catalogue import Catalogue

ENVIRONMENTS = Path(__file__).parent / "environments"
WAITS = 20.0


class Line:
    """Carries reports to a coordinator of the test, or to nobody."""

    def __init__(self, merges: Merges | None = None) -> None:
        self.merges = merges
        self.posts: list[AgentReport] = []
        self.closed = False
        self._posted = threading.Condition()

    def post(self, report: AgentReport) -> Reply | None:
        reply = self.merges.take(report) if self.merges is not None else None
        with self._posted:  # once it is taken: the test looks at the coordinator then
            self.posts.append(report)
            self._posted.notify_all()
        return reply

    def close(self) -> None:
        self.closed = True

    def wait(self, until: Callable[[AgentReport], bool]) -> AgentReport:
        with self._posted:
            assert self._posted.wait_for(lambda: any(map(until, self.posts)), WAITS)
            return next(filter(until, self.posts))


class Host:
    """A host's agent under a script: its ranks are processes that the test starts."""

    def __init__(self, home: Path, merges: Merges | None = None, identity: RunIdentity | None = None) -> None:
        self.chat, self.lines = Chat(), list[Line]()
        self.keys: list[str] = []
        folder = RunFolder.create("launch", ["bash", "launch.sh"], home=home, identity=identity)
        settings = ExporterSettings(home=home)

        def engine(known: RunIdentity, _own: Merges, _agent: str) -> Line:
            self.keys.append(known.key)
            self.lines.append(Line(merges))
            return self.lines[-1]

        self.joining = Joining(
            identity,
            folder,
            settings,
            [self.chat],
            notice=lambda _: None,
            metrics=RunMetrics("launch"),
            engine=engine,
        )
        self.pids: set[int] = set()
        probing = Probing(home / "rings")
        probing.pids = lambda: self.pids  # type: ignore[method-assign]
        self.agent = Agent(
            folder, settings, Catalogue.of([]), [self.chat], probing=probing, joining=self.joining
        )

    def reports(self, found: Incident) -> None:
        self.agent._reporting._report(found)


@pytest.fixture
def rank() -> Iterator[Callable[..., int]]:
    """Start a process with the environment of a rank, as it was captured."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, **changes: str) -> int:
        environ = dict(
            line.split("=", 1) for line in (ENVIRONMENTS / f"{name}.env").read_text().splitlines() if line
        )
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", "print(flush=True); input()"],
                env={**environ, **changes},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        stdout = started[-1].stdout
        assert stdout is not None
        stdout.readline()  # before it runs, its environment may be that of this process
        return started[-1].pid

    yield start
    for process in started:
        process.communicate(b"\n")


def test_agent_joins_when_its_ranks_identify_the_run(tmp_path: Path, rank: Callable[..., int]) -> None:
    hosts = [Host(tmp_path / name) for name in ("n1", "n2")]
    for host, name in zip(hosts, ("torchrun-static-rank0", "torchrun-static-rank3"), strict=True):
        host.agent.tick()
        assert host.agent.member is None
        host.pids = {rank(name)}
        host.agent.tick()
        assert host.agent.member is not None
        host.agent.tick()
        host.reports(incident(1.0))
        host.lines[0].wait(lambda post: bool(post.incidents))
        assert not host.chat.got
        host.agent.leave()
    assert hosts[0].keys == hosts[1].keys and len(hosts[0].keys) == 1
    known = [read_info(host.agent.folder.path) for host in hosts]
    assert [(item.run, item.key, item.node) for item in known if item is not None] == [
        ("launch", hosts[0].keys[0], 0),
        ("launch", hosts[0].keys[0], 1),
    ]


def test_open_incidents_are_handed_over_without_a_second_message(
    tmp_path: Path, rank: Callable[..., int]
) -> None:
    people = Chat()
    host = Host(tmp_path, coordinator := Coordinator([people], name="n1"))
    found, over = incident(1.0), incident(2.0, 2)
    host.reports(found)
    host.reports(over)
    host.reports(msgspec.structs.replace(over, status="resolved", resolution="recovered", resolved_at=3.0))
    assert len(host.chat.got) == 3
    host.pids = {rank("torchrun-static-rank0")}
    host.agent.tick()
    post = host.lines[0].wait(lambda post: bool(post.ledger))
    assert [incident.id for incident in post.incidents] == [found.id]
    coordinator.step()
    assert [item.id for item in people.adopted] == [found.id]
    record = read_journal(host.agent.folder.path, name=RUN_INCIDENTS)
    assert [(item.id, item.status) for item in record] == [(found.id, "open")]
    assert people.stages in ([], [(found.id, found.stage)])  # an edit of what was sent
    closed = msgspec.structs.replace(
        found, status="resolved", resolution="recovered", updated_at=9.0, resolved_at=9.0
    )
    host.reports(closed)
    host.lines[0].wait(lambda post: any(incident.status == "resolved" for incident in post.incidents))
    coordinator.step()
    assert people.stages[-1] == (found.id, closed.stage) != (found.id, found.stage)
    assert len(host.chat.got) == 3
    wait_until(lambda: [item.id for item in host.chat.adopted] == [found.id])
    host.agent.leave()
    record = read_journal(host.agent.folder.path, name=RUN_INCIDENTS)
    assert [(item.id, item.status) for item in record[-1:]] == [(found.id, "resolved")]


def test_provisional_run_takes_the_name_from_its_ranks(tmp_path: Path, rank: Callable[..., int]) -> None:
    guessed = RunIdentity(key="5f", job="n1-29500", origin="command", agents=2, provisional=True)
    host = Host(tmp_path, identity=guessed)
    host.reports(found := incident(1.0))
    host.lines[0].wait(lambda post: bool(post.incidents))
    host.pids = {rank("torchrun-static-rank0")}
    host.agent.tick()
    assert host.lines[0].closed and host.keys[0] == "5f" != host.keys[1]
    post = host.lines[1].wait(lambda post: bool(post.incidents))
    assert (post.key, [incident.id for incident in post.incidents]) == (host.keys[1], [found.id])
    host.agent.leave()
    assert [item.id for item in host.chat.got] == [found.id]  # nobody had acknowledged it


def test_records_distinguish_hosts_with_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(("a" * 12, "b" * 12))
    monkeypatch.setattr(joining, "host_id", lambda _: next(ids))
    identity = RunIdentity(key="5f", job="8123.0", origin="flags", agents=2)
    coordinator = Coordinator([])
    hosts = [Host(tmp_path, coordinator, identity) for _ in range(2)]
    name = socket.gethostname()
    hosts[0].lines[0].wait(lambda post: True)
    hosts[1].lines[0].wait(lambda post: True)
    found = [host.agent.folder.info for host in hosts]
    wait_until(lambda: found[1].host_in_run != name)
    assert [item.host_in_run for item in found] == [name, f"{name}-{'b' * 12}"]
    assert [item.host for item in found] == [name, name]
    assert [item.agent[:12] for item in found] == ["a" * 12, "b" * 12]
    for host in hosts:
        host.agent.leave()


def test_ranks_of_a_single_host_start_no_joining(tmp_path: Path, rank: Callable[..., int]) -> None:
    host = Host(tmp_path)
    host.pids = {rank("torchrun-standalone-rank1"), rank("torchrun-static-rank0", GROUP_WORLD_SIZE="1")}
    host.agent.tick()
    host.reports(incident(1.0))
    assert host.agent.member is None and not host.keys and len(host.chat.got) == 1
    info = read_info(host.agent.folder.path)
    assert info is not None and not info.key


def test_agents_without_joining_or_local_ranks_do_not_join(tmp_path: Path, rank: Callable[..., int]) -> None:
    pid = rank("torchrun-static-rank0")
    folder = RunFolder.create("launch", ["srun", "train"], home=tmp_path)
    for join, may in ((JoinSettings(mode="off"), True), (JoinSettings(), False)):
        joining = Joining(
            None,
            folder,
            ExporterSettings(home=tmp_path, join=join),
            [],
            notice=lambda _: None,
            metrics=RunMetrics("launch"),
            ranks_may_say=may,
        )
        assert joining.look({pid}) is None and joining.member is None
