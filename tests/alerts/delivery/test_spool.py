"""The agent's spool on a real disk: killed, full, shared and in a burst."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from waiting import wait_until

from stallwatch_alerts.delivery import outbox as outbox_module
from stallwatch_alerts.delivery.claims import IN_ORDER
from stallwatch_alerts.delivery.grouping import MOST_WAITING
from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.pacing import Limit
from stallwatch_alerts.notice import Notice
from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.sink import ChatSink
from stallwatch_alerts.storage import engine as engine_module
from stallwatch_alerts.storage.engine import open_engine
from stallwatch_alerts.store import IncidentStore
from stallwatch_alerts.store_sink import StoreSink
from stallwatch_exporter import steady
from stallwatch_exporter.incident import Incident
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.stacks.records import StackGroup, StallStacks

Stall = Callable[..., Incident]

_AGENT = """
import sys, threading
from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.sink import ChatSink
from stallwatch_alerts.storage.engine import open_engine
from stallwatch_exporter.incident import Incident
from stallwatch_rules.pages.catalogue import Catalogue

database, url, where = sys.argv[1:]

class Stuck:
    name = "stuck"
    def send(self, notice):
        if where == "after":
            AppriseChannel(url).send(notice)
        print("here", flush=True)
        threading.Event().wait()

from stallwatch_alerts.channels.apprise_channel import AppriseChannel
sink = ChatSink(
    AlertSettings(urls=(url,)), Catalogue.of([]), spool=lambda: Outbox(open_engine(database)),
    connect=lambda _: Stuck(),
)
for number in range(2):
    sink(Incident(id=f"run/{number}", run="run", kind="stall", rule="x", severity="critical", status="open",
                  episode=1, opened_at=1.0, updated_at=1.0))
threading.Event().wait()
"""


@pytest.mark.parametrize(("where", "copies"), [("before", 1), ("after", 2)])
def test_message_of_a_killed_agent_arrives_at_most_twice(
    tmp_path: Path, chat: Any, mail_of: Any, clock: Any, where: str, copies: int
) -> None:
    """A message arrives once if the agent dies before the chat had it, and at most twice otherwise."""
    database = f"sqlite:///{tmp_path / 'spool.db'}"
    agent = subprocess.Popen(
        [sys.executable, "-c", _AGENT, database, chat.url, where],
        stdout=subprocess.PIPE,
        env={**os.environ},
        text=True,
    )
    try:
        assert agent.stdout is not None and agent.stdout.readline() == "here\n"
    finally:
        agent.send_signal(signal.SIGKILL)
        agent.wait()
    clock.now = time.time()
    later = mail_of(chat.url, Outbox(open_engine(database)))
    later.pass_time(20)  # the claim of a process that is known to be dead need not run out
    heard = [body["id"] for body in chat.bodies]
    assert (heard.count("run/0"), heard.count("run/1")) == (copies, 1)
    assert later.states() == ["sent", "sent"]


def test_unsent_messages_are_sent_by_the_next_agent(
    chat: Any, spool: Outbox, stall: Stall, catalogue: Catalogue
) -> None:
    chat.always = 503
    settings = AlertSettings(urls=(chat.url,))
    first = ChatSink(settings, catalogue, spool=lambda: spool)
    first(stall())
    chat.wait_for_requests(1)  # the message is stored by now
    assert not first.close(1)
    assert (first.kept(), first.failed) == (1, 0)
    chat.always = None
    second = ChatSink(settings, catalogue, spool=lambda: spool)
    chat.wait_for(1)
    assert second.close(120)
    assert [body["id"] for body in chat.bodies] == ["myrun/stall/silent-hang-no-error/1"]


def test_episode_is_sent_once_by_several_agents(
    chat: Any, spool: Outbox, stall: Stall, catalogue: Catalogue
) -> None:
    for _ in range(2):
        sink = ChatSink(AlertSettings(urls=(chat.url,)), catalogue, spool=lambda: spool)
        sink(stall())
        sink(stall(status="resolved", resolution="recovered", resolved_at=1100.0))
        assert sink.close(120)
    sink = ChatSink(AlertSettings(urls=(chat.url,)), catalogue, spool=lambda: spool)
    sink(stall(id="myrun/stall/silent-hang-no-error/2", episode=2, opened_at=2000.0))
    assert sink.close(120)
    assert [(body["id"][-1], body["status"]) for body in chat.bodies] == [
        ("1", "open"),
        ("1", "resolved"),
        ("2", "open"),
    ]


class Editing:
    """A chat whose messages can be edited."""

    name = "chat"

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.edited: list[str] = []
        self.came = threading.Event()

    def send(self, notice: Notice) -> None:
        self.sent.append(str(notice.facts["status"]))

    def has_message(self, incident: str) -> bool:
        return self.sent == ["open"]

    def edit(self, notice: Notice) -> None:
        self.edited.append(notice.message.title)
        self.came.set()


def test_new_facts_of_an_open_incident_edit_its_message(
    spool: Outbox, stall: Stall, catalogue: Catalogue
) -> None:
    chat = Editing()
    settings = AlertSettings(urls=("x://",))
    sink = ChatSink(settings, catalogue, spool=lambda: spool, connect=lambda _: chat)
    sink(stall())
    sink(stall(stalled_seconds=90.0))  # only time has passed
    groups = [StackGroup([0], "collective", what="all_gather"), StackGroup([1], "code", place="t.py:5 in f")]
    sink(stall(stacks=StallStacks(5.0, 0.1, groups, [1], "elsewhere")))
    assert chat.came.wait(120)
    sink(stall(status="resolved", resolution="recovered", resolved_at=1100.0))
    assert sink.close(120)
    assert chat.sent == ["open", "resolved"]
    assert len(chat.edited) == 1 and "rank 1 holds up the run" in chat.edited[0]


def test_full_disk_does_not_delay_messages(
    chat: Any,
    spool: Outbox,
    stall: Stall,
    catalogue: Catalogue,
    fill_disk: Callable[[Engine], None],
    tmp_path: Path,
) -> None:
    fill_disk(spool._engine)
    said: list[str] = []
    sink = ChatSink(AlertSettings(urls=(chat.url,)), catalogue, spool=lambda: spool, report=said.append)
    for number in range(20):
        sink(stall(id=f"run/{number}", evidence=["x" * 4000] * 3))
    sink.close(120)
    heard = {name for body in chat.bodies for name in body.get("incidents", body["id"]).split(",")}
    assert heard == {f"run/{number}" for number in range(20)}
    assert any("cannot be stored on disk" in line for line in said)


def test_end_follows_its_beginning_if_the_disk_fills_up_between_them(
    chat: Any,
    spool: Outbox,
    stall: Stall,
    catalogue: Catalogue,
    fill_disk: Callable[[Engine], None],
) -> None:
    sink = ChatSink(AlertSettings(urls=(chat.url,)), catalogue, spool=lambda: spool)
    sink(stall())
    chat.wait_for(1)
    fill_disk(spool._engine)
    sink(stall(status="resolved", resolution="recovered", resolved_at=40.0, evidence=["x" * 4000] * 30))
    chat.wait_for(2)
    sink.close(60)
    assert [body["status"] for body in chat.bodies] == ["open", "resolved"]


class FullDisk:
    """Engine hook that fails every writing transaction while the disk is full, or with another error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: str = "database or disk is full") -> None:
        self.is_full = False
        self._error = error
        self._writing = outbox_module.writing
        monkeypatch.setattr(outbox_module, "writing", self._begin)

    def _begin(self, engine: Engine) -> Any:
        if self.is_full and engine.url.database:  # the database in memory is not affected
            raise OperationalError("UPDATE", {}, sqlite3.OperationalError(self._error))
        return self._writing(engine)


def test_message_on_a_full_disk_is_sent_once_and_before_its_end(
    chat: Any, spool: Outbox, stall: Stall, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    chat.always = 503
    sink = ChatSink(AlertSettings(urls=(chat.url,)), catalogue, spool=lambda: spool)
    sink(stall())
    while not chat.requests:
        time.sleep(0.01)
    disk.is_full = True
    chat.always = None
    chat.wait_for(1)
    sink(stall(status="resolved", resolution="recovered", resolved_at=40.0))
    chat.wait_for(2)
    disk.is_full = False
    assert sink.close(60)
    assert [body["status"] for body in chat.bodies] == ["open", "resolved"]
    assert [delivery.state for delivery in spool.deliveries()] == ["sent"]


def test_full_disk_does_not_hold_back_the_messages_after_the_first(
    spool: Outbox, notice: Callable[..., Notice], mail_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, chat = FullDisk(monkeypatch), Picky()
    chat.is_up = True
    mail = mail_of("json://127.0.0.1:9/chat", spool, connect=lambda _: chat)
    for name in ("run/1", "run/2"):
        mail.put(notice(id=name))
    disk.is_full = True
    assert [mail.sender.look() for _ in range(3)] == [True, True, False]
    assert chat.taken == ["run/1 open", "run/2 open"]
    disk.is_full = False
    assert not mail.sender.look()
    assert {(delivery.state, delivery.attempts) for delivery in spool.deliveries()} == {("sent", 1)}


def test_rate_limits_of_a_chat_apply_on_a_full_disk(
    spool: Outbox, notice: Callable[..., Notice], mail_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, chat = FullDisk(monkeypatch), Picky()
    chat.is_up = True
    mail = mail_of(
        "json://127.0.0.1:9/chat", spool, connect=lambda _: chat, limits=(Limit(count=1, seconds=10),)
    )
    mail.put(notice(id="run/1"), notice(id="run/2"))
    disk.is_full = True
    assert [mail.sender.look() for _ in range(2)] == [True, False]
    mail.clock.now += 20
    assert [mail.sender.look() for _ in range(2)] == [True, False]
    assert chat.taken == ["run/1 open", "run/2 open"]


def test_pauses_between_attempts_grow_on_a_full_disk(
    spool: Outbox, notice: Callable[..., Notice], mail_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, chat = FullDisk(monkeypatch), Picky()
    mail = mail_of("json://127.0.0.1:9/chat", spool, connect=lambda _: chat)
    mail.put(notice(id="run/1"))
    disk.is_full = True
    mail.pass_time(120)
    assert 4 <= chat.tries <= 12
    chat.is_up = True
    mail.pass_time(60)
    assert chat.taken == ["run/1 open"]


@pytest.mark.parametrize("is_acknowledged", [False, True])
def test_full_disk_does_not_escalate_an_acknowledged_incident(
    spool: Outbox,
    notice: Callable[..., Notice],
    mail_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    is_acknowledged: bool,
) -> None:
    disk, chat = FullDisk(monkeypatch), Picky()
    chat.is_up = True
    acknowledged = {"run/1": is_acknowledged}
    mail = mail_of(
        "json://127.0.0.1:9/chat", spool, connect=lambda _: chat, acknowledged=acknowledged.__getitem__
    )
    mail.put(notice(id="run/1"), escalation=True)
    disk.is_full = True
    assert [mail.sender.look() for _ in range(2)] == [True, False]
    assert chat.taken == ([] if is_acknowledged else ["run/1 open"])
    disk.is_full = False
    assert not mail.sender.look()
    (delivery,) = spool.deliveries()
    assert delivery.state == ("withdrawn" if is_acknowledged else "sent")


class Picky:
    """A chat in memory that accepts messages when it is up, except those of `dislikes`."""

    name = "picky"

    def __init__(self, dislikes: str = "") -> None:
        self.is_up, self.dislikes = False, dislikes
        self.tries = 0
        self.taken: list[str] = []

    def send(self, notice: Notice) -> None:
        self.tries += 1
        if not self.is_up or notice.facts["id"] == self.dislikes:
            raise OSError("refused")
        self.taken.append(f"{notice.facts['id']} {notice.facts['status']}")


def quick_clock() -> Callable[[], float]:
    """Return a monotonic clock that runs sixty times as fast."""
    begin = steady.now()
    return lambda: begin + 60 * (steady.now() - begin)


Sink = Callable[..., ChatSink]


@pytest.fixture
def sink_of(spool: Outbox, catalogue: Catalogue) -> Sink:
    """Return a sink that stores its messages on this disk, and sends them to a chat in memory."""
    settings = AlertSettings(urls=("json://127.0.0.1:1/hook",))

    def make(chat: Picky, **options: Any) -> ChatSink:
        return ChatSink(settings, catalogue, spool=lambda: spool, connect=lambda _: chat, **options)

    return make


@pytest.mark.parametrize("refusals", [1, IN_ORDER + 1])
def test_end_in_memory_waits_for_its_beginning_on_a_full_disk(
    sink_of: Sink, stall: Stall, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    disk, picky = FullDisk(monkeypatch), Picky()
    sink = sink_of(picky, clock=quick_clock())
    sink(stall(id="a/1"))
    wait_until(lambda: picky.tries >= refusals)
    disk.is_full = True
    sink(stall(id="a/1", status="resolved", resolution="recovered", resolved_at=40.0))
    wait_until(lambda: sink._memory is not None)
    picky.is_up = True
    wait_until(lambda: len(picky.taken) >= 2)
    disk.is_full = False
    sink.close(60)
    assert picky.taken == ["a/1 open", "a/1 resolved"]


def test_message_in_memory_does_not_wait_for_other_incidents(
    sink_of: Sink, stall: Stall, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, picky = FullDisk(monkeypatch), Picky(dislikes="a/1")
    picky.is_up = True
    sink = sink_of(picky)
    sink(stall(id="a/1"))
    wait_until(lambda: picky.tries >= 1)
    disk.is_full = True
    sink(stall(id="b/1"))
    wait_until(lambda: picky.taken == ["b/1 open"])
    disk.is_full = False
    sink.close(1)


def test_message_in_memory_does_not_wait_for_a_broken_disk(
    sink_of: Sink, stall: Stall, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, picky = FullDisk(monkeypatch, "database disk image is malformed"), Picky()
    sink = sink_of(picky, clock=quick_clock())
    sink(stall(id="a/1"))
    wait_until(lambda: picky.tries >= 1)
    disk.is_full = picky.is_up = True
    sink(stall(id="a/1", status="resolved", resolution="recovered", resolved_at=40.0))
    wait_until(lambda: picky.taken == ["a/1 resolved"])
    disk.is_full = False
    sink.close(1)


def test_message_that_cannot_be_stored_does_not_affect_others(
    chat: Any, stall: Stall, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ChatSink(AlertSettings(urls=(chat.url,)), catalogue)
    drafts = sink._planner.drafts

    def failing(letters: Any, *rest: Any) -> Any:
        if any(letter.incident.id == "a/1" for letter in letters):
            raise KeyError("rule")
        return drafts(letters, *rest)

    monkeypatch.setattr(sink._planner, "drafts", failing)
    for number in range(4):
        sink(stall(id=f"a/{number}"))
    assert not sink.close(60)
    assert sink.failed == 1
    assert {name for body in chat.bodies for name in body.get("incidents", body["id"]).split(",")} == {
        "a/0",
        "a/2",
        "a/3",
    }


def test_end_follows_its_beginning_that_waits_in_memory(
    chat: Any, spool: Outbox, stall: Stall, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    disk.is_full = True
    chat.always = 503
    sink = ChatSink(AlertSettings(urls=(chat.url,)), catalogue, spool=lambda: spool)
    sink(stall())
    while not chat.requests:
        time.sleep(0.01)
    disk.is_full = False
    sink(stall(status="resolved", resolution="recovered", resolved_at=40.0))
    sink(stall(id="another/1"))
    while not spool.deliveries():
        time.sleep(0.01)
    chat.always = None
    chat.wait_for(3)
    assert sink.close(60)
    assert [body["status"] for body in chat.bodies if body["id"] != "another/1"] == ["open", "resolved"]
    assert [delivery.run for delivery in spool.deliveries()] == [
        stall().run
    ]  # the disk stores the other message


def test_message_that_memory_refuses_is_kept_in_order(
    chat: Any, stall: Stall, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused, calls = engine_module.memory_engine, threading.Event(), itertools.count(1)

    def memory_engine() -> Engine:
        if (call := next(calls)) <= 2:
            if call == 2:
                refused.set()
            raise OSError("Too many open files")
        return real()

    monkeypatch.setattr(engine_module, "memory_engine", memory_engine)
    sink = ChatSink(AlertSettings(urls=(chat.url,)), catalogue)
    sink(stall())
    assert refused.wait(10)
    sink(stall(status="resolved", resolution="recovered", resolved_at=40.0))
    assert sink.close(60)
    assert [body["status"] for body in chat.bodies] == ["open", "resolved"]


def test_unavailable_spool_is_replaced_by_memory_until_it_opens(
    chat: Any, spool: Outbox, stall: Stall, catalogue: Catalogue
) -> None:
    broken = threading.Event()
    broken.set()

    def open_spool() -> Outbox:
        if broken.is_set():
            raise OSError("no such folder")
        return spool

    sink = ChatSink(AlertSettings(urls=(chat.url,)), catalogue, spool=open_spool)
    sink(stall(id="a/1"))
    chat.wait_for(1)
    assert spool.deliveries() == []
    broken.clear()
    sink(stall(id="a/2"))
    chat.wait_for(2)
    assert sink.close(120)
    assert [delivery.state for delivery in spool.deliveries()] == ["sent"]


class Robot:
    """A chat in memory that accepts 20 messages a minute, by a clock that runs sixty times as fast."""

    name = "robot"

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.heard: list[tuple[float, int]] = []

    def send(self, notice: Notice) -> None:
        now = self._clock()
        assert sum(now - at < 60 for at, _ in self.heard) < 20, "blocked for ten minutes"
        self.heard.append((now, int(notice.facts.get("count") or 1)))


@pytest.mark.timeout(600)
def test_burst_is_grouped_within_rate_limits_and_stored_completely(
    tmp_path: Path, stall: Stall, catalogue: Catalogue
) -> None:
    count = 2500
    begun = time.monotonic()

    def clock() -> float:
        return 1_800_000_000.0 + 60 * (time.monotonic() - begun)

    store = IncidentStore.at_home(tmp_path)
    robot = Robot(clock)
    kept = StoreSink(lambda: store)
    chats = ChatSink(
        AlertSettings(urls=("dingtalk://abcdefgh1234",)),
        catalogue,
        spool=lambda: Outbox(store.engine),
        connect=lambda _: robot,
        clock=clock,
    )
    for number in range(count):
        incident = stall(id=f"run-{number}/stall/x/1", run=f"run-{number}")
        chats(incident)
        kept(incident)
    assert Outbox(store.engine).waiting() <= MOST_WAITING + 200
    assert kept.close(240)
    assert chats.close(240)
    store = IncidentStore.at_home(tmp_path)
    assert len(store.list()) == count
    assert sum(found for _, found in robot.heard) >= count
    assert len(robot.heard) < 60
    store.close()
