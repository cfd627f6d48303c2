"""Agents of one run over HTTP, each at its own loopback address, and a merger that only records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

from stallwatch_exporter.cluster import client, peer
from stallwatch_exporter.cluster.client import HttpBacking
from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.cluster.wire import AgentReport, Member, Reply
from stallwatch_exporter.settings import JoinSettings

KEY = "5f3a000000000000"


class Recorder:
    """Implementation of `Merges` that records reports, and answers with all agents that sent one."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.reports: list[AgentReport] = []
        self.refused: dict[str, str] = {}
        self.broken: Exception | None = None

    def take(self, report: AgentReport) -> Reply:
        if self.broken is not None:
            raise self.broken
        self.reports.append(report)
        newest = {item.agent: item for item in self.reports}
        return Reply(
            coordinator=self.name,
            acknowledged={report.agent: report.number},
            members=[
                Member(value.host_id, value.host, value.address, value.node) for value in newest.values()
            ],
            refused=self.refused.get(report.agent, ""),
        )

    def step(self) -> None:
        pass

    @property
    def agents(self) -> list[str]:
        return [report.agent for report in self.reports]


@dataclass
class Host:
    """An agent with its merger, and its messages to the user."""

    backing: HttpBacking
    merges: Recorder
    agent: str
    host_id: str
    node: int
    notes: list[str]
    key: str = KEY
    numbers: int = 0

    def post(self, **fields: Any) -> Reply | None:
        self.numbers += 1
        return self.backing.post(
            report(self.agent, self.host_id, self.numbers, self.node, self.key, **fields)
        )


def report(
    agent: str, host_id: str = "h0", number: int = 1, node: int = 0, key: str = KEY, **fields: Any
) -> AgentReport:
    return AgentReport(
        key=key,
        agent=agent,
        host=f"n{node}",
        host_id=host_id,
        node=node,
        run="sft-1",
        number=number,
        **fields,
    )


@dataclass
class Cluster:
    """Factory of agents at 127.0.0.1, 127.0.0.2 and so on, all with one port, like hosts of a cluster."""

    home: Path
    hosts: int = 3
    port: int = field(default_factory=free_port)
    now: float = 0.0
    unique: str = field(default_factory=lambda: os.urandom(6).hex())  # tests in parallel have such hosts, too
    made: list[HttpBacking] = field(default_factory=list)

    def start(self, node: int, agent: str = "", **given: Any) -> Host:
        """Start the agent of a node; `given` holds settings such as `secret`, `identity` or `home`."""
        agent = agent or f"agent{node}"
        host_id = f"{given.pop('host_id', f'host{node}')}-{self.unique}"
        identity = given.pop("identity", None) or self.identity(node, given.pop("key", KEY))
        merges, notes = given.pop("merges", None) or Recorder(agent), list[str]()
        home = given.pop("home", self.home)
        settings = {"secret": "correct horse", "host": self.address(node), "port": self.port, **given}
        backing = HttpBacking(
            identity,
            JoinSettings(**settings),
            home,
            merges,
            agent=agent,
            host_id=host_id,
            notice=notes.append,
            clock=lambda: self.now,
            hostname=f"n{node}",
        )
        self.made.append(backing)
        return Host(backing, merges, agent, host_id, node, notes, identity.key)

    def identity(self, node: int, key: str = KEY) -> RunIdentity:
        hosts = tuple(self.address(index) for index in range(self.hosts))
        return RunIdentity(key=key, job="1", origin="slurm", hosts=hosts, node=node)

    @staticmethod
    def address(node: int) -> str:
        return f"127.0.0.{node + 1}"


@contextmanager
def cluster(home: Path, hosts: int = 3) -> Iterator[Cluster]:
    """Yield a cluster, and close its agents at the end. Timeouts are long enough for a busy machine."""
    made = Cluster(home, hosts)
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (peer, "ANSWER_SECONDS"),
            (client, "ANSWER_SECONDS"),
            (client, "POST_SECONDS"),
            (client, "_SIBLING_SECONDS"),
        ):
            patch.setattr(module, name, 100.0)
        yield made
        for backing in made.made:
            backing.close()


def hasty(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Make agents wait only `seconds` for an answer."""
    patch.setattr(peer, "ANSWER_SECONDS", seconds)
    patch.setattr(client, "ANSWER_SECONDS", seconds)
