"""What a run died of is told as one incident: that it was found, then that the run failed; never "over"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch_alerts.channels.notice import incident_notice
from stallwatch_alerts.delivery.fingerprint import fingerprint
from stallwatch_alerts.delivery.keys import told_key
from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.planning import Letter, Planner
from stallwatch_alerts.endings import keeping, telling
from stallwatch_alerts.messages import render
from stallwatch_alerts.people import People, Silence
from stallwatch_alerts.routing import Route
from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.sink import ChatSink
from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.incident import Ending, Incident
from stallwatch_rules.pages.catalogue import Catalogue

FIRST, BOSS = "json://first.test/", "json://boss.test/"
NAME = "myrun/finding/cuda-oom/1"


@pytest.fixture
def found(stall: Callable[..., Incident]) -> Incident:
    return stall(id=NAME, kind="finding", rule="cuda-oom", stalled_seconds=None, threshold_seconds=None)


@pytest.fixture
def died(found: Incident) -> Incident:
    ending = Ending("failed", 1, None, "The command returned 1.", 60.0)
    return msgspec.structs.replace(found, kind="ended", ending=ending, updated_at=found.opened_at + 5)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[IncidentStore]:
    kept = IncidentStore.at_home(tmp_path)
    yield kept
    kept.close()


def test_a_chat_hears_fatal_and_then_failed_of_one_incident(
    chat_server: Any, found: Incident, died: Incident, catalogue: Catalogue
) -> None:
    sink = ChatSink(AlertSettings(urls=(chat_server.url,)), catalogue)
    for change in (found, found, died, died):
        sink(change)
    assert sink.close(120)
    told = [(body["id"], body["kind"], body["status"], body["type"]) for body in chat_server.bodies]
    assert told == [(NAME, "finding", "open", "failure"), (NAME, "ended", "open", "failure")]
    assert [body["title"].split(":")[0] for body in chat_server.bodies] == ["[myrun] fatal", "[myrun] failed"]


def test_it_is_kept_as_over_since_the_end_and_told_as_it_was(
    store: IncidentStore, found: Incident, died: Incident
) -> None:
    store.upsert(keeping(found))
    store.upsert(keeping(died))
    (kept,) = store.list()
    assert (kept.status, kept.resolution, kept.resolved_at) == ("resolved", "run-failed", died.updated_at)
    assert [(one.what, one.text) for one in store.history(NAME)] == [("open", ""), ("resolved", "run-failed")]
    assert told_key(telling(kept)) == told_key(died) != told_key(found)


@pytest.mark.parametrize(
    ("language", "resolution", "title"),
    [
        ("en", "run-failed", "[myrun] ended with the run (failed): CUDA out of memory (rank 1)"),
        ("en", "run-stopped", "[myrun] ended with the run (stopped by hand): CUDA out of memory (rank 1)"),
        ("zh", "run-failed", "[myrun] 随任务结束（任务失败）："),
        ("zh", "run-stopped", "[myrun] 随任务结束（被人为中断）："),
    ],
)
def test_what_ends_with_its_run_is_not_over_or_well(
    found: Incident, catalogue: Catalogue, language: str, resolution: Any, title: str
) -> None:
    ended = msgspec.structs.replace(found, status="resolved", resolution=resolution, resolved_at=1100.0)
    page = catalogue.pages["cuda-oom"]
    assert render(ended, language, page).title.startswith(title)
    notice = incident_notice(ended, language, page)
    assert (notice.level, notice.facts["resolution"]) == ("info", resolution)


@pytest.mark.parametrize(
    ("language", "title"),
    [
        ("en", "[myrun] ended with the run (failed), after a stall of 1 min 40 s"),
        ("zh", "[myrun] 停滞 1 分 40 秒后任务失败，随任务结束"),
    ],
)
def test_a_stall_that_the_failure_ended_says_how_long_it_was(
    stall: Callable[..., Incident], language: str, title: str
) -> None:
    ended = stall(status="resolved", resolution="run-failed", stalled_seconds=100.0)
    assert render(ended, language, None).title == title


class Desk:
    """What is planned for the two chats."""

    def __init__(self, store: IncidentStore) -> None:
        self.people = People(store.engine)
        route = Route(escalate_after=600, escalate_urls=(BOSS,))
        self._planner = Planner(AlertSettings(urls=(FIRST,), routes=(route,)), lambda: self.people)
        self._outbox = Outbox(store.engine)

    def tell(self, incident: Incident) -> list[tuple[str, bool]]:
        """The chats that get a message of it, and whether they are called for want of anybody else."""
        letter = Letter(incident, incident_notice(incident, "en", None))
        names = {fingerprint(url): url for url in (FIRST, BOSS)}
        drafts = self._outbox.put(
            lambda told: self._planner.drafts([letter], told, self._outbox, incident.updated_at),
            incident.updated_at,
        )
        return [(names[draft.channel], draft.escalation) for draft in drafts]


def test_others_are_called_once_for_both_its_messages(
    store: IncidentStore, found: Incident, died: Incident
) -> None:
    desk = Desk(store)
    assert desk.tell(found) == [(FIRST, False), (BOSS, True)]
    assert desk.tell(died) == [(FIRST, False)]


def test_others_are_called_of_an_end_whose_beginning_nobody_told(
    store: IncidentStore, died: Incident
) -> None:
    assert Desk(store).tell(died) == [(FIRST, False), (BOSS, True)]


@pytest.mark.parametrize("heard", [True, False])
def test_who_heard_of_the_beginning_hears_of_the_end_in_spite_of_a_silence(
    store: IncidentStore, found: Incident, died: Incident, heard: bool
) -> None:
    if heard:
        Desk(store).tell(found)
    People(store.engine).silence(Silence(0.0, 1e12, run="myrun"))
    assert (FIRST in dict(Desk(store).tell(died))) is heard
