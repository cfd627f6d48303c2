"""Records of a relay in its database: messages before the answer, and the notified chats."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alertmanager import alert, group, posted

from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.notice import fingerprint
from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.incident import Incident
from stallwatch_rules.pages.catalogue import Catalogue

Stall = Callable[..., Incident]


def test_message_is_stored_before_alertmanager_gets_a_response(
    start: Any, store: IncidentStore, chat_server: Any, tmp_path: Path, catalogue: Catalogue
) -> None:
    chat_server.answers = [503] * 1000
    post = start()
    assert post(group(alert("StallwatchRankGone"))) == 200
    chat_server.wait_for_requests(1)
    post.relay.close()
    chat_server.answers = []
    # A new process on the same database loses no message and repeats none.
    again = start(on=IncidentStore.at_home(tmp_path))
    chat_server.wait_for_requests(chat_server.requests + 1)
    assert [body["rule"] for body in chat_server.bodies] == ["StallwatchRankGone"]
    assert again.answer(group(alert("StallwatchRankGone")))[1] == "stored: 1 repeated\n"


def test_alertmanager_retries_if_the_database_fails(
    start: Any, store: IncidentStore, chat_server: Any
) -> None:
    post = start()
    with store.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE messages RENAME TO gone")
    assert post(group(alert("StallwatchRankGone"))) == 503
    assert post(None, "/-/healthy") == 503
    with store.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE gone RENAME TO messages")
    assert post(None, "/-/healthy") == 200
    assert post(group(alert("StallwatchRankGone"))) == 200
    assert posted(chat_server, 1) == [("alert", "StallwatchRankGone", "open")]


def test_two_relays_on_one_database_notify_once(
    start: Any, store: IncidentStore, stall: Stall, tmp_path: Path, chat_server: Any
) -> None:
    store.upsert(stall())
    posts = [start(), start(on=IncidentStore.at_home(tmp_path))]
    body = group(alert(incident="stall"))
    gate = threading.Barrier(8)
    statuses: list[int] = []

    def send(number: int) -> None:
        gate.wait()
        statuses.append(posts[number % 2](body))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # If the relay found the database busy, Alertmanager tries again.
    assert set(statuses) <= {200, 503} and 200 in statuses
    while 503 in statuses:
        statuses[statuses.index(503)] = posts[0](body)
    chat_server.wait_for_requests(1)
    for post in posts:
        post.relay.close()
    assert len(chat_server.bodies) == 1


def test_pruning_does_not_delay_the_response(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, over = threading.Event(), threading.Event()

    def prune(*_: Any) -> int:
        begun.set()
        over.wait(60)
        return 0

    post = start()
    monkeypatch.setattr(post.relay._outbox, "prune", prune)
    try:
        assert post(group(alert("StallwatchRankGone"))) == 200
        assert begun.wait(60) and len(post.relay._outbox.deliveries()) == 1
        begun.clear()
        # pruning runs once a day
        assert post(group(alert("StallwatchRankGone"))) == 200 and not begun.is_set()
    finally:
        over.set()


def test_notified_chats_are_stored_by_fingerprint(store: IncidentStore) -> None:
    ledger = Outbox(store.engine)
    url = "slack://TokenA/TokenB"
    assert fingerprint(url) == fingerprint(f" {url} ") != fingerprint("slack://TokenA/TokenC")
    ledger.note(fingerprint(url), ["a/open"], 1.0)
    ledger.note(fingerprint(url), ["a/open"], 2.0)
    keys = ["a/open", "b/open", *(str(number) for number in range(2000))]
    assert ledger.notified(fingerprint(url), keys) == {"a/open"}
    assert ledger.notified("another", keys) == set()
