"""A PostgreSQL server that stops and restarts, and two relays that share it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallwatch_alerts.channels.apprise_channel import AppriseChannel
from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.sender import Sender
from stallwatch_alerts.store import IncidentStore
from stallwatch_alerts.store_sink import StoreSink
from stallwatch_exporter.incident import Incident

Stall = Callable[..., Incident]
pytestmark = pytest.mark.timeout(600)  # a server start, two waits and a stop
PROGRAM = "from stallwatch.cli import main; main()"


def test_incidents_wait_in_the_agent_while_postgresql_is_down(postgres: Any, stall: Stall) -> None:
    url = postgres.new_database()
    complained = threading.Event()
    sink = StoreSink(lambda: IncidentStore(url), lambda _: complained.set(), url)
    sink(stall(id="before"))
    store = IncidentStore(url)
    while not store.list():
        time.sleep(0.01)
    postgres.stop()
    for number in range(50):
        sink(stall(id=f"during/{number}"))
    assert complained.wait(120)
    postgres.start()
    assert sink.close(120)
    assert sink.failed == 0
    assert len(store.list()) == 51
    store.close()


def test_agent_can_start_while_postgresql_is_down(postgres: Any, stall: Stall) -> None:
    url = postgres.new_database()
    postgres.stop()
    complained = threading.Event()
    said: list[str] = []
    sink = StoreSink(lambda: IncidentStore(url), lambda line: (said.append(line), complained.set()), url)
    sink(stall())
    assert complained.wait(120)
    postgres.start()
    assert sink.close(120)
    assert len(IncidentStore(url).list()) == 1
    assert len(said) == 1 and "watcher" not in said[0]


def test_messages_survive_a_restart_of_postgresql(
    postgres: Any, chat: Any, notice: Any, mail_of: Any
) -> None:
    outbox = Outbox(IncidentStore(postgres.new_database()).engine)
    troubled = threading.Event()
    begun, begun_at = time.time(), time.monotonic()

    def clock() -> float:
        return begun + 20 * (time.monotonic() - begun_at)

    mail = mail_of(chat.url, outbox)
    mail.clock.now = begun
    chat.always = 503
    mail.put(*(notice(id=f"a/{number}") for number in range(3)))
    sender = Sender(
        chat.url,
        outbox,
        AppriseChannel,
        clock=clock,
        report=lambda line: troubled.set() if "outbox" in line else None,
    )
    postgres.stop()
    sender.wake()
    assert troubled.wait(120)
    postgres.start()
    chat.always = None
    chat.wait_for(3, 150)  # a claim that could not be released runs out after a minute of the server's clock
    sender.close(120)
    assert sorted(body["id"] for body in chat.bodies) == ["a/0", "a/1", "a/2"]


class RealRelay:
    """`stallwatch relay` in a separate process."""

    def __init__(self, folder: Path, name: str, database: str, chat: str) -> None:
        environ = {
            **os.environ,
            "STALLWATCH_HOME": str(folder / name),
            "STALLWATCH_ALERTS_INCIDENTS_URL": database,
            "STALLWATCH_ALERTS_URLS": chat,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "relay", "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            cwd=folder,
        )

    def ready(self) -> None:
        """Wait until the relay listens."""
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert "can post to" in line, line
        self.url = line.split()[-1]

    def post(self, number: int) -> None:
        alert: dict[str, Any] = {
            "status": "firing",
            "labels": {"alertname": "StallwatchLogFlood", "run": f"run-{number}", "severity": "critical"},
            "annotations": {"summary": "A flood."},
            "startsAt": "2026-11-21T07:12:13Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "fingerprint": f"{number:016x}",
        }
        alert["generatorURL"] = "http://prometheus:9090/graph"
        body = {
            "version": "4",
            "groupKey": "{}",
            "truncatedAlerts": 0,
            "status": "firing",
            "receiver": "stallwatch-relay",
            "groupLabels": {},
            "commonLabels": {},
            "commonAnnotations": {},
            "externalURL": "http://alertmanager:9093",
            "alerts": [alert],
        }
        request = urllib.request.Request(self.url, data=json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert answer.status == 200

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def heard(chat: Any) -> Counter[str]:
    """Return the number of messages about each alert, including messages about groups."""
    return Counter(
        name for body in list(chat.bodies) for name in body.get("incidents", body["id"]).split(",")
    )


def test_two_relays_on_one_postgresql_send_each_alert_once(postgres: Any, chat: Any, tmp_path: Path) -> None:
    database = postgres.new_database()
    one, other = (RealRelay(tmp_path, name, database, chat.url) for name in ("one", "other"))
    try:
        one.ready()
        other.ready()
        for number in range(10):  # two Alertmanagers that lost contact send everything twice
            one.post(number)
            other.post(number)
        deadline = time.monotonic() + 120
        while len(heard(chat)) < 10 and time.monotonic() < deadline:
            chat.wait_for(len(chat.bodies))
        assert set(heard(chat).values()) == {1} and len(heard(chat)) == 10
        chat.always = 503
        for number in range(10, 20):
            one.post(number)
        one.kill()
        other.post(19)
        chat.always = None
        deadline = time.monotonic() + 150
        while len(heard(chat)) < 20 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(heard(chat)) == 20
        assert set(heard(chat).values()) == {1}
    finally:
        one.kill()
        other.kill()
