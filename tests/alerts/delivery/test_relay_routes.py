"""The relay routes, delays and escalates as the agents do, with a clock that the test moves."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, time, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.planning import Planner
from stallwatch_alerts.notice import escalated_key, fingerprint, stage_key
from stallwatch_alerts.people import OperatorActions, Silence
from stallwatch_alerts.relay.dispatching import (
    AGENT_FIRST_SECONDS,
    Dispatcher,
)
from stallwatch_alerts.relay.relay import NotificationIntake
from stallwatch_alerts.routing import QuietHours, Route
from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.incident import Incident
from stallwatch_rules.pages.catalogue import Catalogue

Stall = Callable[..., Incident]
FIRST, BOSS, SWEEPS = (f"json://127.0.0.1:1/{name}" for name in ("first", "boss", "sweeps"))
ESCALATE = Route(escalate_after=600, escalate_urls=(BOSS,))


class Relayed:
    """Relay without a server, whose messages the test takes out by hand."""

    def __init__(
        self, database: str, clock: Any, mail_of: Any, catalogue: Catalogue, **settings: Any
    ) -> None:
        self.store = IncidentStore(database)
        self.people = OperatorActions(self.store.engine)
        self.outbox = self.ledger = Outbox(self.store.engine)
        self.clock = clock
        self.heard: dict[str, list[str]] = {FIRST: [], BOSS: [], SWEEPS: []}
        chats = AlertSettings(urls=(FIRST,), **settings)
        planner = Planner(chats, lambda: self.people, tick=clock)
        dispatcher = Dispatcher(chats, planner, catalogue)
        self._intake = NotificationIntake(self.store, self.outbox, dispatcher, clock, lambda _: None)
        self.mails = [
            mail_of(
                url,
                self.outbox,
                connect=self._connect,
                acknowledged=planner.is_acknowledged,
                settled=self.outbox.notified_meanwhile,
                delivered=lambda channel, keys: self.outbox.note(channel, keys, clock()),
                limits=(),
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

    def alert(self, *, firing: bool = True, **labels: str) -> str:
        """Post an alert of Alertmanager; return its outcome."""
        began = datetime.fromtimestamp(self.clock.now - 60, timezone.utc).isoformat()
        alert = {
            "status": "firing" if firing else "resolved",
            "labels": {"alertname": "StallwatchX", "run": "myrun", "severity": "critical", **labels},
            "startsAt": began,
        }
        body = {"version": "4", "groupKey": "x", "status": "firing", "alerts": [alert]}
        return str(self._intake.receive(json.dumps(body).encode()).tally)

    def pass_time(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            for mail in self.mails:
                while mail.sender.look():
                    pass
            self.clock.now += 10


@pytest.fixture
def relayed(database: str, clock: Any, mail_of: Any, catalogue: Catalogue) -> Any:
    made: list[Relayed] = []

    def make(*routes: Route, **settings: Any) -> Relayed:
        made.append(Relayed(database, clock, mail_of, catalogue, routes=routes, **settings))
        return made[-1]

    yield make
    for item in made:
        item.store.close()


def counts(at: Relayed) -> tuple[int, ...]:
    return tuple(len(heard) for heard in at.heard.values())


def test_routes_by_run_severity_and_family(relayed: Any, stall: Stall) -> None:
    at = relayed(
        Route(runs=("sweep-*",), urls=(SWEEPS,)),
        Route(families=("memory",), severities=("critical",), urls=(BOSS,)),
        Route(rules=("StallwatchNoise",), urls=()),
    )
    at.store.upsert(stall(id="myrun/ended/cuda-oom/1", rule="cuda-oom", kind="ended"))
    assert at.alert(run="sweep-7") == "1 new"
    assert at.alert(rule="cuda-oom") == "1 new"
    assert at.alert(alertname="StallwatchNoise") == "1 not sent to any chat (min_severity or routes)"
    assert at.alert(severity="warning", alertname="StallwatchSlowdown") == "1 new"
    at.pass_time(10)
    assert counts(at) == (1, 1, 1)
    assert "50% longer" in at.heard[FIRST][0]


def test_unacknowledged_incident_is_escalated_and_its_end_is_sent(relayed: Any, stall: Stall) -> None:
    at = relayed(ESCALATE)
    at.store.upsert(stall(opened_at=at.clock.now))
    assert [at.alert(incident="stall"), at.alert(incident="stall")] == ["1 new", "1 repeated"]
    at.pass_time(600)
    assert counts(at) == (1, 0, 0)
    at.pass_time(AGENT_FIRST_SECONDS + 20)
    (called,) = at.heard[BOSS]
    assert "not acknowledged for 10 min" in called
    over = stall(opened_at=at.store.list(run="myrun")[0].opened_at, status="resolved", resolution="recovered")
    at.store.upsert(over)
    at.alert(incident="stall", firing=False)
    at.pass_time(20)
    assert counts(at) == (2, 2, 0)


def test_acknowledgement_end_or_agents_escalation_cancels_the_relays(relayed: Any, stall: Stall) -> None:
    at = relayed(ESCALATE)
    began = at.clock.now
    acknowledged, over, called = (
        stall(id=f"{run}/stall/silent-hang-no-error/1", run=run, opened_at=began)
        for run in ("acknowledged", "over", "called")
    )
    for incident in (acknowledged, over, called):
        at.store.upsert(incident)
        assert at.alert(run=incident.run, incident="stall") == "1 new"
    assert at.people.acknowledge(acknowledged.id, "ann", began)
    over.status = "resolved"
    at.store.upsert(over)
    at.alert(run="over", incident="stall", firing=False)
    # The run's agent has its own spool and escalated first.
    at.ledger.note(fingerprint(BOSS), [escalated_key(stage_key(called))], began + 601)
    at.pass_time(900)
    assert at.heard[BOSS] == []
    reasons = {
        delivery.run: delivery.reason for delivery in at.outbox.deliveries() if delivery.state == "withdrawn"
    }
    assert reasons == {"acknowledged": "acknowledged", "over": "over", "called": "sent by another process"}


def test_incident_of_a_lost_agent_is_escalated(relayed: Any, stall: Stall) -> None:
    at = relayed(ESCALATE)
    began = at.clock.now
    lost = {"status": "resolved", "resolution": "unknown", "resolved_at": began, "opened_at": began}
    known, late = (stall(id=f"{run}/stall/x/1", run=run, opened_at=began) for run in ("known", "late"))
    for incident in (known, late):
        at.store.upsert(incident)
    at.alert(run="known", incident="stall")
    for run in ("known", "late"):  # the relay receives the late run only when its agent is gone
        at.store.upsert(stall(id=f"{run}/stall/x/1", run=run, **lost))
        at.alert(run=run, incident="stall")
    at.pass_time(600 + AGENT_FIRST_SECONDS + 20)
    assert len(at.heard[BOSS]) == 2 and all("not acknowledged" in item for item in at.heard[BOSS])


def test_alert_without_an_incident_can_be_escalated_and_acknowledged(relayed: Any) -> None:
    at = relayed(ESCALATE)
    for run in ("lost", "cared-for"):
        at.alert(alertname="StallwatchAgentGone", run=run)
    (known,) = at.people.acknowledge_alerts("cared-for")
    assert known.startswith("alert/") and at.people.acknowledge_alerts(known) == []
    at.pass_time(700)
    (called,) = at.heard[BOSS]
    assert "[lost]" in called


def test_quiet_hours_delay_messages_that_the_agent_did_not_send(
    relayed: Any, stall: Stall, clock: Any
) -> None:
    clock.now = datetime(2026, 11, 21, 23, 59, tzinfo=timezone.utc).timestamp()
    at = relayed(Route(quiet=QuietHours(time(22), time(0, 5), ZoneInfo("UTC"))))
    warnings = [
        stall(id=f"{run}/finding/slow/1", run=run, rule="slow", kind="finding", severity="warning")
        for run in ("ours", "agents")
    ]
    for incident in warnings:
        incident.opened_at = at.clock.now
        at.store.upsert(incident)
        assert at.alert(run=incident.run, rule="slow") == "1 held until quiet hours are over"
        assert at.alert(run=incident.run, rule="slow") == "1 repeated"
    at.pass_time(360)
    assert counts(at) == (0, 0, 0)
    at.ledger.note(fingerprint(FIRST), [stage_key(warnings[1])], clock.now)
    at.pass_time(60)
    (found,) = at.heard[FIRST]
    assert "[ours]" in found
    # The agent finds the record, and withdraws its own message.
    assert at.ledger.has_all(fingerprint(FIRST), [stage_key(warnings[0])])


def test_kept_group_is_sent_without_already_sent_incidents(relayed: Any, stall: Stall, clock: Any) -> None:
    clock.now = datetime(2026, 11, 21, 23, 59, tzinfo=timezone.utc).timestamp()
    at = relayed(Route(severities=("warning",), quiet=QuietHours(time(22), time(0, 5), ZoneInfo("UTC"))))
    kept = [
        stall(id=f"{run}/finding/slow/1", run=run, rule="slow", kind="finding", severity="warning")
        for run in ("ours", "a", "b", "c", "d")
    ]
    for incident in kept:
        incident.opened_at = clock.now
        at.store.upsert(incident)
        at.alert(run=incident.run, rule="slow")
        if incident.run != "ours":
            at.ledger.note(fingerprint(FIRST), [stage_key(incident)], clock.now)
    clock.now += 420
    at.alert(run="fresh")  # the group also holds a message that was not delayed
    at.pass_time(20)
    states = {delivery.run: (delivery.state, delivery.reason) for delivery in at.outbox.deliveries()}
    assert states.pop("ours") == states.pop("fresh") == ("sent", "")
    assert set(states.values()) == {("withdrawn", "sent by another process")} and len(states) == 4


def test_silences_apply_to_the_relay(relayed: Any) -> None:
    at = relayed()
    at.people.silence(Silence(at.clock.now - 1, at.clock.now + 3600, run="my*"))
    assert at.alert() == "1 silenced"
    at.pass_time(20)
    assert counts(at) == (0, 0, 0)
    assert at.outbox.deliveries() == []
