"""A crash is one message; if its cause was reported before, the message closes that incident."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.planning import IncidentMessage, Planner
from stallwatch_alerts.messages.compose import render
from stallwatch_alerts.notice import fingerprint, incident_notice
from stallwatch_alerts.people import OperatorActions, Silence
from stallwatch_alerts.routing import Route
from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.sink import ChatSink
from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.incident import Event, Incident
from stallwatch_rules.diagnosis.findings import TRACE_CACHE
from stallwatch_rules.endings import Ending
from stallwatch_rules.judgements.conclusions import STEP_TIME
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import RulePage

FIRST, BOSS = "json://first.test/", "json://boss.test/"
NAME = "myrun/finding/cuda-oom/1"


@pytest.fixture
def found(stall: Callable[..., Incident]) -> Incident:
    return stall(id=NAME, kind="finding", rule="cuda-oom", stalled_seconds=None, threshold_seconds=None)


@pytest.fixture
def died(found: Incident) -> Incident:
    ending = Ending("failed", 1, None, "The command returned 1.", 60.0)
    end = found.opened_at + 5
    return msgspec.structs.replace(
        found,
        kind="ended",
        ending=ending,
        status="resolved",
        resolution="run-failed",
        updated_at=end,
        resolved_at=end,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[IncidentStore]:
    kept = IncidentStore.at_home(tmp_path)
    yield kept
    kept.close()


def test_chat_receives_the_finding_and_then_the_failure(
    chat_server: Any, found: Incident, died: Incident, catalogue: Catalogue
) -> None:
    sink = ChatSink(AlertSettings(urls=(chat_server.url,)), catalogue)
    for change in (found, found, died, died):
        sink(change)
    assert sink.close(120)
    given = [(body["id"], body["status"], body["outcome"], body["type"]) for body in chat_server.bodies]
    assert given == [(NAME, "open", None, "failure"), (NAME, "resolved", "crashed", "failure")]
    assert [body["title"].split(":")[0] for body in chat_server.bodies] == ["[myrun] fatal", "[myrun] failed"]


def test_crash_is_one_message_with_its_cause(chat_server: Any, died: Incident, catalogue: Catalogue) -> None:
    sink = ChatSink(AlertSettings(urls=(chat_server.url,)), catalogue)
    sink(died)
    assert sink.close(120)
    (body,) = chat_server.bodies
    assert (body["run"], body["rule"], body["severity"]) == ("myrun", "cuda-oom", "critical")
    assert (body["status"], body["outcome"]) == ("resolved", "crashed")
    assert "How the run ended: failed, exit code 1" in body["text"] and "What to do:" in body["text"]


def test_end_does_not_repeat_the_beginning(found: Incident, died: Incident, oom_page: Any) -> None:
    opened = Event(found.opened_at, "opened", "finding", "cuda-oom", "critical", 1)
    given = msgspec.structs.replace(died, history=[opened])
    assert "What to do:" not in render(given, "en", oom_page).text
    other = msgspec.structs.replace(given, rule="nccl-watchdog-timeout")
    assert render(other, "en", oom_page).text != render(given, "en", oom_page).text


def test_end_that_hosts_reach_one_after_the_other_is_explained(died: Incident, oom_page: Any) -> None:
    opened = Event(1000.0, "opened", "ended", died.rule, "critical", 1)
    closed = Event(1001.0, "closed", "ended", died.rule, "critical", 1)
    given = msgspec.structs.replace(died, opened_at=1000.0, resolved_at=1001.0, history=[opened, closed])
    assert "What to do:" in render(given, "en", oom_page).text


def test_warning_that_turns_critical_is_sent_once_more(
    chat_server: Any, found: Incident, catalogue: Catalogue
) -> None:
    warned = Event(found.opened_at, "opened", "finding", "step-time-rising", "warning")
    first = msgspec.structs.replace(found, severity="warning", history=[warned])
    worse = msgspec.structs.replace(found, history=[warned])
    sink = ChatSink(AlertSettings(urls=(chat_server.url,)), catalogue)
    for change in (first, worse, worse):
        sink(change)
    assert sink.close(120)
    assert [body["severity"] for body in chat_server.bodies] == ["warning", "critical"]


@pytest.mark.parametrize(
    ("language", "resolution", "title"),
    [
        ("en", "run-failed", "[myrun] ended with the run (failed): CUDA out of memory (rank 1)"),
        (
            "en",
            "run-stopped",
            "[myrun] ended with the run (interrupted): CUDA out of memory (rank 1)",
        ),
        ("zh", "run-failed", "[myrun] 任务失败，事件随之结束："),
        ("zh", "run-stopped", "[myrun] 任务被中断，事件随之结束："),
    ],
)
def test_finding_that_ends_with_its_run_is_not_called_recovered(
    found: Incident, catalogue: Catalogue, language: str, resolution: Any, title: str
) -> None:
    ended = msgspec.structs.replace(found, status="resolved", resolution=resolution, resolved_at=1100.0)
    page = catalogue.pages["cuda-oom"]
    assert render(ended, language, page).title.startswith(title)
    notice = incident_notice(ended, language, page)
    level, outcome = {"run-failed": ("failure", "crashed"), "run-stopped": ("info", "ended")}[resolution]
    assert (notice.level, notice.facts["outcome"]) == (level, outcome)


@pytest.mark.parametrize(
    ("language", "title"),
    [
        ("en", "[myrun] ended with the run (failed), after a stall of 1 min 40 s"),
        ("zh", "[myrun] 卡住 1 分 40 秒后，任务失败"),
    ],
)
def test_stall_ended_by_a_failure_has_its_duration(
    stall: Callable[..., Incident], language: str, title: str
) -> None:
    ended = stall(status="resolved", resolution="run-failed", stalled_seconds=100.0)
    assert render(ended, language, None).title == title


def test_warning_that_turns_critical_within_its_wait_is_one_message(
    chat_server: Any, found: Incident, oom_page: RulePage
) -> None:
    warned = Event(found.opened_at, "opened", "finding", TRACE_CACHE, "warning")
    first = msgspec.structs.replace(found, rule=TRACE_CACHE, severity="warning", history=[warned])
    catalogue = Catalogue.of(
        [oom_page, msgspec.structs.replace(oom_page, id=TRACE_CACHE, harm="by-progress")]
    )
    sink = ChatSink(AlertSettings(urls=(chat_server.url,)), catalogue, warning_seconds=3600.0)
    sink(first)
    sink.alive("")
    sink(msgspec.structs.replace(found, history=[warned]))
    sink(msgspec.structs.replace(first, id="myrun/finding/trace-cache/2"))
    assert sink.close(120)
    assert [body["severity"] for body in chat_server.bodies] == ["critical", "warning"], "none is lost"


@pytest.mark.parametrize("kind", ["stall", "finding"])
def test_warning_that_later_steps_cannot_decide_is_sent_at_once(
    chat_server: Any, stall: Callable[..., Incident], found: Incident, catalogue: Catalogue, kind: str
) -> None:
    slower = msgspec.structs.replace(found, rule=STEP_TIME, severity="warning", harm="degrading")
    sink = ChatSink(AlertSettings(urls=(chat_server.url,)), catalogue, warning_seconds=3600.0)
    sink(stall(severity="warning") if kind == "stall" else slower)
    until = time.monotonic() + 60
    while not chat_server.bodies and time.monotonic() < until:
        time.sleep(0.01)
    assert [body["severity"] for body in chat_server.bodies] == ["warning"]
    sink.close(120)


class Desk:
    """Planner of messages for the two chats."""

    def __init__(self, store: IncidentStore) -> None:
        self.people = OperatorActions(store.engine)
        route = Route(escalate_after=600, escalate_urls=(BOSS,))
        self._planner = Planner(AlertSettings(urls=(FIRST,), routes=(route,)), lambda: self.people)
        self._outbox = Outbox(store.engine)

    def tell(self, incident: Incident) -> list[tuple[str, bool]]:
        """Return the chats that get a message about an incident: (chat, True for an escalation)."""
        letter = IncidentMessage(incident, incident_notice(incident, "en", None))
        names = {fingerprint(url): url for url in (FIRST, BOSS)}
        drafts = self._outbox.put(
            lambda given, called: self._planner.drafts([letter], given, called, incident.updated_at),
            incident.updated_at,
        )
        return [(names[draft.channel], draft.escalation) for draft in drafts]


def test_finding_and_failure_are_escalated_once(
    store: IncidentStore, found: Incident, died: Incident
) -> None:
    desk = Desk(store)
    assert desk.tell(found) == [(FIRST, False), (BOSS, True)]
    assert desk.tell(died) == [(FIRST, False)]


def test_failure_without_a_reported_finding_is_escalated(store: IncidentStore, died: Incident) -> None:
    assert Desk(store).tell(died) == [(FIRST, False), (BOSS, True)]


@pytest.mark.parametrize("heard", [True, False])
def test_end_reaches_notified_chats_despite_a_silence(
    store: IncidentStore, found: Incident, died: Incident, heard: bool
) -> None:
    if heard:
        Desk(store).tell(found)
    OperatorActions(store.engine).silence(Silence(0.0, 1e12, run="myrun"))
    assert (FIRST in dict(Desk(store).tell(died))) is heard
