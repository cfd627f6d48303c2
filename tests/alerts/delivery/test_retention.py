"""Old records are pruned on both databases; open incidents and their notified chats are kept."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Engine, func, select

from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.notice import escalated_key, stage_key
from stallwatch_alerts.people import OperatorActions, Silence
from stallwatch_alerts.storage.retention import prune
from stallwatch_alerts.storage.tables import ACKNOWLEDGEMENTS, HISTORY, INCIDENTS, NOTIFIED, SILENCES
from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.incident import Incident

Stall = Callable[..., Incident]
DAY = 86400.0
TABLES = (INCIDENTS, HISTORY, ACKNOWLEDGEMENTS, NOTIFIED, SILENCES)


def rows(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return [int(connection.scalar(select(func.count()).select_from(table)) or 0) for table in TABLES]


def test_closed_incident_is_pruned_with_its_records(database: str, stall: Stall) -> None:
    store = IncidentStore(database)
    people, ledger = OperatorActions(store.engine), Outbox(store.engine)
    begin = 100 * DAY
    old = stall(id="a_%/stall/x/1", opened_at=begin, updated_at=begin)
    open_one = stall(id="a_%/stall/x/11", opened_at=begin, updated_at=begin)
    for item in (old, open_one):
        store.upsert(item)
        people.acknowledge(item.id, "ann", begin)
        ledger.note("chat", [stage_key(item)], begin)
    over = stall(
        id=old.id, status="resolved", opened_at=begin, updated_at=begin + DAY, resolved_at=begin + DAY
    )
    store.upsert(over)
    ledger.note("chat", [stage_key(over)], begin + DAY)
    people.silence(Silence(begin, begin + DAY))
    assert rows(store.engine) == [2, 5, 2, 3, 1]
    assert prune(store.engine, begin + 90 * DAY, 90) == 0
    prune(store.engine, begin + 92 * DAY, 90)
    assert rows(store.engine) == [1, 2, 1, 1, 0]
    assert store.get(open_one.id) is not None and people.is_acknowledged(open_one.id)
    assert ledger.notified("chat", [stage_key(open_one)]) == {stage_key(open_one)}
    store.close()


def test_notified_chats_without_an_end_are_kept_longer(database: str, stall: Stall) -> None:
    """The spool of a host looks like this if the incidents are in a remote database."""
    store = IncidentStore(database)
    ledger = Outbox(store.engine)
    begin = 1000 * DAY
    lasting, over = (
        stall(id=f"run/finding/open-files/{number}", opened_at=begin, updated_at=begin) for number in (1, 2)
    )
    called = [key for item in (lasting, over) for key in (stage_key(item), escalated_key(stage_key(item)))]
    for key in called:
        ledger.note("chat", [key], begin)
    ended = stage_key(over, "resolved")
    ledger.note("chat", [ended], begin + DAY)
    prune(store.engine, begin + 90.5 * DAY, 90)
    assert ledger.notified("chat", [*called, ended]) == {*called[:2], ended}
    prune(store.engine, begin + 359 * DAY, 90)
    assert ledger.notified("chat", [*called, ended]) == set(called[:2])
    prune(store.engine, begin + 361 * DAY, 90)
    assert ledger.notified("chat", called) == set()
    store.close()
