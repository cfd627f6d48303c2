"""``stallwatch coordinator`` as a real process, and agents that join it over HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from stallwatch_exporter.cluster.client import HttpBacking
from stallwatch_exporter.cluster.coordinator import Coordinator
from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.cluster.wire import AgentReport
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.settings import JoinSettings

SECRET = "s3cret-of-the-cluster"


@pytest.fixture
def service(tmp_path: Path, chat_server: Any) -> Iterator[int]:
    """Yield the port of a running coordinator, which notifies a chat."""
    home = tmp_path / "service"
    code = "from stallwatch.cli import main; main()"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {
        **os.environ,
        "STALLWATCH_HOME": str(home),
        "STALLWATCH_JOIN_SECRET": SECRET,
        "STALLWATCH_ALERTS_URLS": chat_server.url,
    }
    command = [sys.executable, "-c", code, "coordinator", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, env=environ, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert f"port {port}" in process.stderr.readline()
        yield port
        process.terminate()
        assert process.wait(60) == 0


def agent(tmp_path: Path, name: str, port: int, secret: str = SECRET) -> HttpBacking:
    identity = RunIdentity(key="5f5f5f5f5f5f5f5f", job="8123.0", origin="flags", agents=2)
    join = JoinSettings(address=f"127.0.0.1:{port}", secret=secret, host="127.0.0.1")
    merges = Coordinator([], name=name)
    home = tmp_path / name
    return HttpBacking(identity, join, home, merges, agent=name, host_id=name, notice=print, hostname=name)


def report(name: str, number: int, *incidents: Incident) -> AgentReport:
    return AgentReport(
        key="5f5f5f5f5f5f5f5f",
        agent=name,
        host=name,
        host_id=name,
        run="sft",
        number=number,
        expected=2,
        incidents=list(incidents),
    )


def test_incident_of_two_hosts_is_one_message(tmp_path: Path, service: int, chat_server: Any) -> None:
    found = [
        Incident(
            id="sft/stall/silent-hang-no-error/1",
            run="sft",
            kind="stall",
            rule="silent-hang-no-error",
            severity="critical",
            status="open",
            episode=1,
            opened_at=1_800_000_000.0,
            updated_at=1_800_000_000.0,
            host=name,
        )
        for name in ("n1", "n2")
    ]
    agents = [agent(tmp_path, name, service) for name in ("n1", "n2")]
    for name, one, incident in zip(("n1", "n2"), agents, found, strict=True):
        reply = one.post(report(name, 1, incident))
        assert reply is not None
        assert not reply.coordinator.startswith("n")
    wait_until(lambda: len(chat_server.bodies) == 1)
    for name, one, incident in zip(("n1", "n2"), agents, found, strict=True):
        one.post(report(name, 2, incident))
        one.close()
    assert [body["id"] for body in chat_server.bodies] == ["sft/stall/silent-hang-no-error/1"]
