"""Silences, acknowledgements and escalations, on both databases and up to the chat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import Engine
from waiting import wait_until

from stallwatch_alerts.delivery.grouping import group_of, grouped_message, merged
from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.planning import IncidentMessage, Planner
from stallwatch_alerts.messages.compose import Message
from stallwatch_alerts.notice import incident_notice
from stallwatch_alerts.people import OperatorActions, Silence
from stallwatch_alerts.routing import QuietHours, Route
from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.sink import ChatSink
from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.incident import Incident
from stallwatch_rules.pages.catalogue import Catalogue

Stall = Callable[..., Incident]
ID = "myrun/stall/silent-hang-no-error/1"
FIRST, BOSS = "json://127.0.0.1:1/first", "json://127.0.0.1:1/boss"


class Desk:
    """Planner and outbox of a test, which takes the messages of each chat out by hand."""

    def __init__(self, database: str, clock: Any, mail_of: Any, **settings: Any) -> None:
        self.store = IncidentStore(database)
        self.outbox = Outbox(self.store.engine)
        self.people = OperatorActions(self.store.engine)
        self.clock = clock
        self.heard: dict[str, list[str]] = {FIRST: [], BOSS: []}
        chats = AlertSettings(urls=(FIRST,), **settings)
        self.planner = Planner(chats, lambda: self.people, tick=clock)
        self.mails = [
            mail_of(
                url, self.outbox, connect=self._connect, acknowledged=self.planner.is_acknowledged, limits=()
            )
            for url in self.heard
        ]

    def _connect(self, url: str) -> Any:
        heard = self.heard[url]

        class Chat:
            name = "chat"

            def send(self, notice: Any) -> None:
                heard.append(notice.message.title)

        return Chat()

    def tell(self, incident: Incident) -> None:
        self.store.upsert(incident)
        letter = IncidentMessage(incident, incident_notice(incident, "en", None), "hang")
        now = self.clock.now
        ended = [incident.id] if incident.is_settled else []
        self.outbox.put(lambda *known: self.planner.drafts([letter], *known, now), now, ended)

    def pass_time(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            for mail in self.mails:
                while mail.sender.look():
                    pass
            self.clock.now += 10

    def close(self) -> None:
        self.store.close()


@pytest.fixture
def desk(database: str, clock: Any, mail_of: Any) -> Any:
    made: list[Desk] = []

    def make(**settings: Any) -> Desk:
        made.append(Desk(database, clock, mail_of, **settings))
        return made[-1]

    yield make
    for item in made:
        item.close()


ESCALATE = (Route(escalate_after=600, escalate_urls=(BOSS,)),)


def over(stall: Stall, **changes: Any) -> Incident:
    return stall(**{"status": "resolved", "resolution": "recovered", "resolved_at": 1100.0, **changes})


def test_unacknowledged_incident_is_escalated_and_its_end_is_sent(desk: Any, stall: Stall) -> None:
    at = desk(routes=ESCALATE)
    at.tell(stall())
    at.pass_time(590)
    assert (len(at.heard[FIRST]), at.heard[BOSS]) == (1, [])
    at.pass_time(30)
    (called,) = at.heard[BOSS]
    assert "not acknowledged for 10 min" in called
    at.tell(over(stall))
    at.pass_time(20)
    assert [len(heard) for heard in at.heard.values()] == [2, 2]


@pytest.mark.parametrize("seconds", [7200.0, -7200.0])
def test_escalation_delay_is_independent_of_the_wall_clock(
    desk: Any, stall: Stall, set_wall_clock: Callable[[float], None], seconds: float
) -> None:
    at = desk(routes=ESCALATE)
    at.tell(stall())
    set_wall_clock(seconds)
    at.pass_time(590)
    assert at.heard[BOSS] == []
    at.pass_time(30)
    assert len(at.heard[BOSS]) == 1


def test_acknowledged_incident_is_not_escalated(desk: Any, stall: Stall) -> None:
    at = desk(routes=ESCALATE)
    at.tell(stall())
    assert at.people.acknowledge(ID, "ann", at.clock.now)
    at.pass_time(1200)
    at.tell(over(stall))
    at.pass_time(20)
    assert (len(at.heard[FIRST]), at.heard[BOSS]) == (2, [])
    assert [(item.what, item.who) for item in at.store.history(ID)] == [
        ("open", ""),
        ("acknowledged", "ann"),
        ("resolved", ""),
    ]


def test_closed_incident_is_not_escalated(desk: Any, stall: Stall) -> None:
    at = desk(routes=ESCALATE)
    at.tell(stall())
    at.pass_time(60)
    at.tell(over(stall))
    at.pass_time(1200)
    assert (len(at.heard[FIRST]), at.heard[BOSS]) == (2, [])


def test_incident_of_a_lost_agent_is_escalated(desk: Any, stall: Stall) -> None:
    at = desk(routes=ESCALATE)
    at.tell(stall())
    at.pass_time(60)
    at.tell(over(stall, resolution="unknown"))
    at.pass_time(1200)
    assert "agent gone" in at.heard[FIRST][1]
    (called,) = at.heard[BOSS]
    assert "not acknowledged for 10 min" in called


def test_escalation_begins_with_the_command_to_acknowledge(desk: Any, stall: Stall, clock: Any) -> None:
    at = desk(routes=ESCALATE)
    incident = stall(evidence=["x" * 400] * 40)
    notice = incident_notice(incident, "en", None)
    letter = IncidentMessage(incident, replace(notice, message=Message(notice.message.title, "long " * 300)))
    first, boss = at.planner.drafts([letter], lambda _channel, _keys: set(), lambda _: set(), clock.now)
    sent = grouped_message(merged([group_of(boss.notice)]), "en").message.text
    assert sent.startswith(f"To acknowledge this incident: stallwatch alerts ack {ID}\n\n")
    assert len(sent) <= 2000
    assert "ack" not in first.notice.message.text


def test_acknowledgement_applies_to_one_episode(desk: Any, stall: Stall) -> None:
    at = desk(routes=ESCALATE)
    at.store.upsert(stall())
    at.people.acknowledge(ID, "ann", 1.0)
    assert at.people.is_acknowledged(ID)
    at.store.upsert(stall(opened_at=5000.0))  # a new run with the same name, after the old run was pruned
    assert not at.people.is_acknowledged(ID)
    assert not at.people.acknowledge("no/such/1", "ann", 1.0)


def test_silence_suppresses_matching_messages_until_it_ends(desk: Any, stall: Stall) -> None:
    at = desk()
    now = at.clock.now
    number = at.people.silence(Silence(now, now + 3600, run="my*", severity="critical", comment="known"))
    at.tell(stall(id="a/1"))
    at.tell(stall(id="b/1", run="other"))
    at.tell(stall(id="c/1", severity="warning"))
    at.tell(over(stall, id="a/1"))
    at.pass_time(30)
    assert len(at.heard[FIRST]) == 2
    assert at.people.expire(number, at.clock.now) and not at.people.expire(number, at.clock.now)
    assert at.people.silences(at.clock.now) == []
    at.tell(stall(id="d/1"))
    at.pass_time(20)
    assert len(at.heard[FIRST]) == 3
    assert len(at.store.list()) == 4


def test_messages_of_quiet_hours_are_sent_in_order_in_the_morning(
    desk: Any, stall: Stall, clock: Any
) -> None:
    from datetime import datetime

    zone = ZoneInfo("Asia/Shanghai")
    night = QuietHours(time(22), time(7), zone)
    clock.now = datetime(2026, 11, 21, 23, 0, tzinfo=zone).timestamp()
    at = desk(routes=(Route(quiet=night),))
    at.tell(stall(severity="warning"))
    at.pass_time(60)
    at.tell(over(stall, severity="warning"))
    at.pass_time(3600)
    assert at.heard[FIRST] == []
    clock.now = datetime(2026, 11, 22, 7, 0, tzinfo=zone).timestamp()
    at.pass_time(20)
    opened, ended = at.heard[FIRST]
    assert "stalled" in opened and "recovered" in ended


def test_unreachable_database_silences_nothing_and_escalates(stall: Stall, spool: Outbox, clock: Any) -> None:
    def away() -> OperatorActions:
        raise OSError("no database")

    planner = Planner(AlertSettings(urls=(FIRST,)), away, tick=clock)
    letter = IncidentMessage(stall(), incident_notice(stall(), "en", None))
    assert len(planner.drafts([letter], lambda *_: set(), lambda _: set(), clock.now)) == 1


def test_notes_are_part_of_the_history(engine: Engine, stall: Stall, database: str) -> None:
    store, people = IncidentStore(database), OperatorActions(engine)
    store.upsert(stall())
    assert people.note(ID, "bob", "looked at it", 7.0)
    assert not people.note("no/such/1", "bob", "x", 7.0)
    assert [(item.what, item.text) for item in store.history(ID)] == [("open", ""), ("note", "looked at it")]
    store.close()


class TakenOver:
    """Two hosts of a run with a spool each: the second host adopts the messages of the first."""

    def __init__(self, spool: Outbox, catalogue: Catalogue, clock: Any, **delivery: Any) -> None:
        self.spool, self.clock = spool, clock
        self.heard: list[tuple[str, str]] = []
        settings = AlertSettings(urls=(FIRST,), routes=ESCALATE)
        self.sink = ChatSink(
            settings, catalogue, spool=lambda: spool, connect=self._connect, clock=clock, **delivery
        )

    def _connect(self, url: str) -> Any:
        return SimpleNamespace(
            name="chat", send=lambda notice: self.heard.append((url, notice.facts["status"]))
        )

    def calls(self) -> list[tuple[str, float]]:
        """Return the escalations: the state, and the seconds until each."""
        planned = [delivery for delivery in self.spool.deliveries() if delivery.escalation]
        return [(item.state, item.not_before - self.clock.now) for item in planned]


@pytest.fixture
def taken_over(spool: Outbox, catalogue: Catalogue, clock: Any) -> Iterator[TakenOver]:
    made = TakenOver(spool, catalogue, clock)
    yield made
    made.sink.close(5)


def test_new_coordinator_escalates_for_the_lost_host(taken_over: TakenOver, stall: Stall) -> None:
    at = taken_over
    found = stall(opened_at=at.clock.now - 100)
    at.sink.adopt(found)
    wait_until(lambda: at.calls() == [("waiting", 510.0)])
    at.clock.now += 520
    wait_until(lambda: at.heard == [(BOSS, "open")])


@pytest.mark.parametrize("ends", [True, False])
def test_escalation_is_returned_if_the_other_host_merges_again(
    taken_over: TakenOver, stall: Stall, ends: bool
) -> None:
    at = taken_over
    found = stall(opened_at=at.clock.now - 100)
    at.sink.adopt(found)
    wait_until(lambda: at.calls() == [("waiting", 510.0)])
    if ends:
        at.sink.adopt(over(stall, opened_at=found.opened_at))
    else:
        at.sink.release(found.id)
    wait_until(lambda: at.calls() == [("withdrawn", 510.0)])
    if not ends:
        at.sink.adopt(found)
        wait_until(lambda: sorted(at.calls()) == [("waiting", 510.0), ("withdrawn", 510.0)])


def test_only_one_of_two_hosts_escalates_a_planned_escalation(
    taken_over: TakenOver, stall: Stall, spool: Outbox, catalogue: Catalogue
) -> None:
    at = taken_over
    found = stall(opened_at=at.clock.now)
    at.sink(found)
    wait_until(lambda: at.heard == [(FIRST, "open")])
    beside = TakenOver(spool, catalogue, at.clock)  # the hosts share a state folder
    beside.sink.adopt(found)
    assert beside.sink.close(60)
    assert (at.sink.escalates(found.id), beside.sink.escalates(found.id)) == (True, False)
    beside.sink.release(found.id)
    at.sink.adopt(found)
    assert at.calls() == [("waiting", 600.0)]
    at.sink.release(found.id)
    wait_until(lambda: at.calls() == [("withdrawn", 600.0)])
    assert not at.sink.escalates(found.id)


def test_separated_hosts_escalate_once_with_a_shared_database(
    taken_over: TakenOver, stall: Stall, tmp_path: Path, catalogue: Catalogue
) -> None:
    at, shared = taken_over, IncidentStore(f"sqlite:///{tmp_path / 'shared.db'}")
    seen = Outbox(shared.engine)
    apart = [
        TakenOver(
            Outbox(IncidentStore(f"sqlite:///{tmp_path / name}.db").engine),
            catalogue,
            at.clock,
            delivered=lambda channel, keys: seen.note(channel, keys, at.clock.now),
            settled=seen.has_all,
        )
        for name in ("n0", "n1")
    ]
    found = stall(opened_at=at.clock.now)
    apart[0].sink(found)
    wait_until(lambda: apart[0].heard == [(FIRST, "open")])
    apart[1].sink.adopt(found)
    wait_until(lambda: apart[1].calls() == [("waiting", 610.0)])
    at.clock.now += 605
    wait_until(lambda: (BOSS, "open") in apart[0].heard)
    at.clock.now += 10
    wait_until(lambda: [state for state, _ in apart[1].calls()] == ["withdrawn"])
    assert not apart[1].heard
    for item in apart:
        item.sink.close(5)
    shared.close()


def test_escalation_before_a_takeover_is_not_repeated(taken_over: TakenOver, stall: Stall) -> None:
    at = taken_over
    found = stall(opened_at=at.clock.now - 700)
    at.sink.adopt(found)
    at.sink(over(stall, opened_at=found.opened_at))
    wait_until(lambda: at.heard == [(FIRST, "resolved")])
    assert at.calls() == []
