from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.sink import ChatSink
from stallwatch_alerts.storage.engine import writing
from stallwatch_alerts.storage.tables import INCIDENTS
from stallwatch_alerts.store import IncidentStore
from stallwatch_alerts.store_sink import StoreSink
from stallwatch_exporter.incident import Incident
from stallwatch_rules.endings import Ending, ExitedRank, MemoryUse
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Primary

Stall = Callable[..., Incident]


@pytest.fixture
def store(tmp_path: Path) -> IncidentStore:
    return IncidentStore.at_home(tmp_path / "new" / "home")


def test_incident_round_trips(store: IncidentStore, stall: Stall, oom_primary: Primary) -> None:
    memory = MemoryUse(held=3, ranks={0: 1 << 30, 11: 2 << 30})
    ending = Ending("killed", 137, "SIGKILL", "Killed.", 3.0, [ExitedRank(rank=1, step=29)], memory)
    incident = stall(primary=oom_primary, ending=ending)
    store.upsert(incident)
    assert store.list() == [incident] == store.beginning_with(incident.id, 2)
    assert store.get(incident.id) == incident


def test_unreadable_incident_does_not_hide_others(
    store: IncidentStore, stall: Stall, caplog: pytest.LogCaptureFixture
) -> None:
    store.upsert(stall(id="a/1"))
    store.upsert(stall(id="a/2"))
    with writing(store.engine) as connection:
        of_a_newer_version = update(INCIDENTS).where(INCIDENTS.c.id == "a/1").values(payload={"id": "a/1"})
        connection.execute(of_a_newer_version)
    assert [incident.id for incident in store.list()] == ["a/2"]
    assert "is skipped" in caplog.text
    assert store.get("a/1") is None and store.get("a/2") is not None


def test_newest_state_replaces_the_older(store: IncidentStore, stall: Stall) -> None:
    store.upsert(stall())
    store.upsert(stall(status="resolved", resolution="recovered", resolved_at=1100.0))
    (incident,) = store.list()
    assert (incident.status, incident.resolved_at) == ("resolved", 1100.0)


def test_list_filters_and_sorts(store: IncidentStore, stall: Stall) -> None:
    store.upsert(stall(id="a/1", run="a", opened_at=1.0))
    store.upsert(stall(id="a/2", run="a", opened_at=3.0, status="resolved"))
    store.upsert(stall(id="b/1", run="b", opened_at=2.0))
    assert [incident.id for incident in store.list()] == ["a/2", "b/1", "a/1"]
    assert [incident.id for incident in store.list(run="a")] == ["a/2", "a/1"]
    assert [incident.id for incident in store.list(run="a", status="open")] == ["a/1"]
    assert [incident.id for incident in store.list(limit=1)] == ["a/2"]


def test_nan_loss_can_be_stored(store: IncidentStore, stall: Stall) -> None:
    store.upsert(stall(last_loss=float("nan")))
    assert store.list()[0].last_loss is None


def test_several_agents_can_write_to_one_database(tmp_path: Path, stall: Stall) -> None:
    stores = [IncidentStore.at_home(tmp_path) for _ in range(4)]

    def write(number: int) -> None:
        stores[number % 4].upsert(stall(id=f"run/{number // 4}", opened_at=float(number)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(40)))
    assert len(stores[0].list()) == 10


def test_sink_writes_in_the_background(store: IncidentStore, stall: Stall) -> None:
    sink = StoreSink(lambda: store)
    incident = stall()
    sink(incident)
    incident.status = "resolved"
    sink(incident)
    assert sink.close(120)
    assert store.list()[0].status == "resolved"
    assert sink.failed == 0


def test_unfixed_finding_of_an_ended_run_is_closed_and_stays_actionable(
    store: IncidentStore, stall: Stall, chat_server: Any, catalogue: Catalogue
) -> None:
    """A broken checkpoint of an ended run never gets resolved. Escalations still happen."""
    sink, chat = StoreSink(lambda: store), ChatSink(AlertSettings(urls=(chat_server.url,)), catalogue)
    found = stall(kind="finding", rule="checkpoint-archive-corrupt")
    left = stall(kind="finding", rule="checkpoint-archive-corrupt", status="resolved", resolution="unmended")
    left.resolved_at = left.updated_at = 1200.0
    for incident in (found, left):
        sink(incident)
        chat(incident)
    assert sink.close(120) and chat.close(120)
    (kept,) = store.list()
    assert (kept.status, kept.resolution, kept.resolved_at) == ("resolved", "unmended", 1200.0)
    assert not kept.is_settled
    assert [(body["status"], body["outcome"]) for body in chat_server.bodies] == [
        ("open", None),
        ("resolved", "ended"),
    ]


def test_only_a_server_database_counts_as_shared(store: IncidentStore) -> None:
    urls = ("", "sqlite:///x.db", "postgresql://db/stallwatch")
    assert [StoreSink(lambda: store, url=url).is_shared for url in urls] == [False, False, True]


def test_database_errors_are_counted_and_not_raised(store: IncidentStore, stall: Stall) -> None:
    said: list[str] = []
    sink = StoreSink(lambda: store, said.append)
    sink(stall(run=object()))
    sink(stall(run=object()))
    sink(stall())
    assert not sink.close(120)
    assert sink.failed == 2
    assert len(said) == 1
    assert len(store.list()) == 1


def test_database_error_reveals_neither_url_nor_data(tmp_path: Path, stall: Stall) -> None:
    said: list[str] = []
    url = "postgresql://watcher:s3cr3t%2Fpw@db.example:5432/incidents"

    def refuse() -> IncidentStore:
        raise RuntimeError(f"no connection to {url} with password s3cr3t/pw")

    sink = StoreSink(refuse, said.append, url)
    sink(stall())
    assert not sink.close(120)
    (line,) = said
    assert line.startswith("an incident could not be stored (RuntimeError: no connection to ****")
    assert "s3cr3t" not in line and "watcher" not in line

    said.clear()
    store = IncidentStore(f"sqlite:///{tmp_path / 'i.db'}")
    with store._engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE incidents")
    sink = StoreSink(lambda: store, said.append)
    sink(stall(run="a-private-name"))
    assert not sink.close(120)
    reason = "OperationalError: (sqlite3.OperationalError) no such table: incidents"
    assert said == [f"an incident could not be stored ({reason})"]
    with pytest.raises(Exception, match="hidden due to hide_parameters") as error:
        store.upsert(stall(run="a-private-name"))
    assert "a-private-name" not in str(error.value)


def test_failing_report_is_not_counted_twice(stall: Stall) -> None:
    def broken(*_: object) -> None:
        raise OSError("gone")

    sink = StoreSink(broken, broken)  # type: ignore[arg-type]
    sink(stall())
    assert not sink.close(120)
    assert sink.failed == 1
