"""The page of an incident, and the link to its run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.planning import Draft
from stallwatch_alerts.notice import incident_notice
from stallwatch_alerts.store import IncidentStore
from stallwatch_dashboard.data.source import Source
from stallwatch_dashboard.settings import DashboardSettings
from stallwatch_exporter.incident import Event, Incident
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_rules.endings import Ending

pytest.importorskip("streamlit.testing.v1")
from drivenpages import page, texts

pytestmark = pytest.mark.usefixtures("page_settings")


@pytest.fixture
def incident(home: Path, make_incident: Callable[..., Incident]) -> Incident:
    """Return an open incident in the database."""
    found = make_incident(opened_at=time.time() - 10)
    store = IncidentStore.at_home(home)
    store.upsert(found)
    store.close()
    return found


def test_back_link_leads_to_the_run(incident: Incident, make_run: Callable[..., RunFolder]) -> None:
    """The browser's back button opens the run page at an address that names the incident."""
    now = time.time()
    for name, began in (("stuck", now), ("newer", now + 60)):
        make_run(name, now=began)
    assert page("run").selectbox(key="chosen_run").value == "newer"
    app = page("run", incident=incident.id, lang="en")
    assert not app.exception and app.selectbox(key="chosen_run").value == "stuck"
    assert app.query_params == {"run": "stuck", "lang": "en"}
    assert page("run", incident="gone/1").query_params == {"run": "newer"}


def test_viewer_sees_that_actions_are_denied(incident: Incident, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stallwatch_dashboard.pages.incident.may_operate", lambda: False)
    app = page("incidents", incident=incident.id)
    assert "Only operators can acknowledge" in texts(app, "caption")
    assert [item.key for item in app.button] == ["all_incidents"] and not app.text_area
    assert "Only operators" not in texts(page("incidents", incident="gone/1"), "caption")


@pytest.mark.parametrize(("resolution", "offered"), [("recovered", True), ("run-stopped", False)])
def test_silence_is_offered_only_while_the_run_can_continue(
    home: Path, make_incident: Callable[..., Incident], resolution: str, offered: bool
) -> None:
    now = time.time()
    found = make_incident(opened_at=now - 10, resolved_at=now, status="resolved", resolution=resolution)
    store = IncidentStore.at_home(home)
    store.upsert(found)
    store.close()
    app = page("incidents", incident=found.id)
    assert ("silence" in [item.key for item in app.button]) is offered and app.text_area


def test_deliveries_are_shown_in_the_selected_language(incident: Incident, home: Path) -> None:
    notice = incident_notice(incident, "en", None)
    store = IncidentStore.at_home(home)
    outbox = Outbox(store.engine)
    chats = ("first", "second", "third", "fourth")
    outbox.put(lambda *_: [Draft(chat, chat, incident.run, notice, (chat,)) for chat in chats], time.time())
    first, second = (outbox.claim(chat, time.time()) for chat in chats[:2])
    assert first is not None and second is not None
    outbox.sent(first, "first", time.time())
    outbox.give_up(second, "second", "why")
    outbox.drop("third", "why", time.time())
    store.close()
    for language, words in (
        ("en", "sent given up withdrawn waiting"),
        ("zh", "已发送 已放弃 已撤回 等待发送"),
    ):
        table = page("incidents", incident=incident.id, lang=language).dataframe[1].value
        assert " ".join(table.iloc[:, 1]) == words


def test_id_of_a_merged_incident_leads_to_the_merged_one(
    home: Path, make_incident: Callable[..., Incident]
) -> None:
    store = IncidentStore.at_home(home)
    own = make_incident(id="stuck/stall/silent-hang-no-error/7", episode=7)
    merged = make_incident(hosts=["n1", "n2"], aliases=[own.id])
    store.upsert(own)
    store.upsert(merged)
    store.close()
    source = Source(DashboardSettings(home=home))
    assert [incident.id for incident in source.cases.incidents()] == [merged.id]
    found = source.incident(own.id)
    assert found is not None and found.id == merged.id
    source.close()


def test_episode_is_one_row_with_its_history(home: Path, make_incident: Callable[..., Incident]) -> None:
    began = time.time() - 100
    history = [
        Event(began, "opened", "finding", "step-time-rising", "warning"),
        Event(began + 40, "opened", "stall", "silent-hang-no-error", "critical", 1),
        Event(began + 41, "stacks", "stall", "silent-hang-no-error", "critical", 1),
        Event(began + 90, "closed", "ended", "cuda-oom", "critical", 3),
    ]
    crashed = {"kind": "ended", "status": "resolved", "resolution": "run-failed", "resolved_at": began + 90}
    found = make_incident(opened_at=began, rule="cuda-oom", history=history, **crashed)
    store = IncidentStore.at_home(home)
    store.upsert(found)
    store.close()
    assert len(page("incidents").dataframe[0].value) == 1
    table = page("incidents", incident=found.id, lang="en").dataframe[0].value
    assert list(table["State"]) == ["opened", "stalled", "stacks of the ranks collected", "ended"]
    assert list(table["Note"]) == [
        "step-time-rising",
        "silent-hang-no-error (rank 1)",
        "silent-hang-no-error (rank 1)",
        "ended with the run: failed: cuda-oom (rank 3)",
    ]


def test_state_column_has_room_for_the_longest_state(
    home: Path, make_incident: Callable[..., Incident]
) -> None:
    now, ending = time.time(), Ending("interrupted", 130, "SIGINT")
    found = make_incident(
        opened_at=now - 10, resolved_at=now, status="resolved", resolution="run-stopped", ending=ending
    )
    store = IncidentStore.at_home(home)
    store.upsert(found)
    store.close()
    for language in ("en", "zh"):
        table = page("incidents", lang=language).dataframe[0]
        state = table.value.columns[0]
        assert json.loads(table.proto.columns)[state]["width"] > 6 * len(table.value[state].iloc[0])
