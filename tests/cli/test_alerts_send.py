"""``stallwatch alerts send`` beside a relay: a message that one of them sent is not sent by the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from stallwatch.cli.watching import Destinations
from stallwatch.config import chats
from stallwatch.config.handover import notified_elsewhere, open_store
from stallwatch.config.loading import load
from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.planning import Draft
from stallwatch_alerts.notice import Notice, fingerprint, incident_notice, planned_key, stage_key
from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.incident import Incident
from stallwatch_rules.pages.catalogue import Catalogue

Stallwatch = Callable[..., Result]
URL = "json://127.0.0.1:1/hook"
CHAT = fingerprint(URL)
LONG_AGO = time.time() - 3600


def stall(run: str) -> Incident:
    return Incident(
        id=f"{run}/stall/x/1",
        run=run,
        kind="stall",
        rule="x",
        severity="critical",
        status="open",
        episode=1,
        opened_at=LONG_AGO,
        updated_at=LONG_AGO,
    )


def key(run: str) -> str:
    return stage_key(stall(run))


def keep(outbox: Outbox, run: str, *, planned: bool = False) -> None:
    """Store a waiting message; `planned` delays it as a relay does in quiet hours."""
    notice = incident_notice(stall(run), "en", None)
    keys = (planned_key(key(run)) if planned else key(run),)
    draft = Draft(CHAT, "chat", run, notice, keys, stall(run).id, not_before=LONG_AGO if planned else 0.0)
    outbox.put(lambda *_: [draft], LONG_AGO)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of runs about which the chat got a message."""
    found: list[str] = []

    class Chat:
        name = "chat"

        def send(self, notice: Notice) -> None:
            found.append(str(notice.facts["run"]))

    def connecting(*_: Any) -> Chat:
        return Chat()

    # Import the command's module first: a later import would bind the fake for other tests.
    for module in ("stallwatch.cli.alerts", "stallwatch.config.chats"):
        monkeypatch.setattr(f"{module}.connecting", connecting)
    monkeypatch.setenv("STALLWATCH_ALERTS_URLS", URL)
    return found


@pytest.mark.parametrize("elsewhere", [False, True])
def test_messages_kept_by_the_relay_are_sent_once_and_recorded(
    stallwatch: Stallwatch,
    heard: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: bool,
) -> None:
    database = tmp_path / "stallwatch-home" / "incidents.db"
    store = IncidentStore.at_home(database.parent)
    if elsewhere:
        monkeypatch.setenv("STALLWATCH_ALERTS_INCIDENTS_URL", f"sqlite:///{database}")
    ledger = Outbox(store.engine)
    for run in ("reported-by-its-agent", "unreported"):
        keep(Outbox(store.engine), run, planned=True)
    ledger.note(CHAT, [key("reported-by-its-agent")], LONG_AGO)
    assert stallwatch("alerts", "send").exit_code == 0
    assert heard == ["unreported"]
    assert ledger.has_all(CHAT, [key("unreported")])


def test_messages_kept_on_this_host_are_sent_unless_the_relay_sent_them(
    stallwatch: Stallwatch, heard: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "stallwatch-home"
    spool = Outbox(IncidentStore.in_file(home, "spool.db").engine)
    store = IncidentStore(f"sqlite:///{tmp_path / 'shared.db'}")
    monkeypatch.setenv("STALLWATCH_ALERTS_INCIDENTS_URL", f"sqlite:///{tmp_path / 'shared.db'}")
    ledger = Outbox(store.engine)
    for run in ("reported-by-relay", "unreported"):
        keep(spool, run)
    ledger.note(CHAT, [key("reported-by-relay")], LONG_AGO)
    assert stallwatch("alerts", "send").exit_code == 0
    assert heard == ["unreported"]
    assert ledger.has_all(CHAT, [key("unreported")])
    assert sorted(delivery.state for delivery in spool.deliveries()) == ["sent", "withdrawn"]


def test_agent_does_not_resend_messages_of_a_relay_on_its_database(
    heard: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallwatch.cli.watching.connecting", chats.connecting)
    store = IncidentStore.at_home(tmp_path / "stallwatch-home")
    outbox = ledger = Outbox(store.engine)
    for run in ("reported-by-its-agent", "unreported"):
        keep(outbox, run, planned=True)
    ledger.note(CHAT, [key("reported-by-its-agent")], LONG_AGO)
    destinations = Destinations(load(), Catalogue.of([]))
    assert destinations._chat is not None
    destinations._chat(stall("news"))
    deadline = time.monotonic() + 60
    while outbox.waiting() and time.monotonic() < deadline:
        time.sleep(0.05)
    destinations.close()
    assert sorted(heard) == ["news", "unreported"]
    assert ledger.has_all(CHAT, [key("unreported")])


def test_messages_for_a_removed_chat_are_listed_and_dropped_on_request(
    stallwatch: Stallwatch, heard: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, fresh = fingerprint("slack://gone/for/good"), fingerprint("json://other:1/hook")
    outbox = Outbox(IncidentStore.at_home(tmp_path / "stallwatch-home").engine)
    for channel, name, run in (
        (gone, "slack://****", "a"),
        (gone, "slack://****", "b"),
        (fresh, "other", "c"),
    ):
        notice = incident_notice(stall(run), "en", None)
        draft = Draft(channel, name, run, notice, (key(run),), stall(run).id)
        outbox.put(lambda *_, draft=draft: [draft], LONG_AGO)  # type: ignore[misc]
    result = stallwatch("alerts", "send", "--wait", "0.1")
    assert result.exit_code == 1 and heard == []
    assert "2 messages waiting for slack://****: the configuration contains no URL" in result.stderr
    command = f"stallwatch alerts send --drop {gone[:12]}"
    assert command in result.stderr
    keep(outbox, "sound")
    refused = stallwatch("alerts", "send", "--drop", CHAT)
    assert refused.exit_code == 2 and "chat is configured" in refused.stderr
    assert "no messages are waiting" in stallwatch("alerts", "send", "--drop", "no-such").stderr
    dropped = stallwatch("alerts", "send", "--drop", gone[:12])
    # the third message still waits
    assert dropped.exit_code == 1 and "dropped 2 messages for slack://****" in dropped.stdout
    assert heard == ["sound"]
    states = {
        delivery.run: (delivery.state, delivery.reason.split(" by ")[0]) for delivery in outbox.deliveries()
    }
    assert states["a"] == states["b"] == ("withdrawn", "dropped")
    assert states["c"][0] == "waiting" and states["sound"][0] == "sent"
    assert stallwatch("alerts", "send", "--drop", fresh).exit_code == 0


@pytest.mark.parametrize("elsewhere", [False, True])
def test_messages_sent_by_others_are_known_from_the_incident_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Messages are noted in a private database when they are stored, which does not count."""
    if elsewhere:
        monkeypatch.setenv("STALLWATCH_ALERTS_INCIDENTS_URL", f"sqlite:///{tmp_path / 'shared.db'}")
    config = load()
    asked, ledger = notified_elsewhere(config), Outbox(open_store(config).engine)
    assert not asked(CHAT, [key("a")])
    ledger.note(CHAT, [key("a")], LONG_AGO)
    assert asked(CHAT, [key("a")]) is elsewhere
    assert asked(CHAT, [planned_key(key("a"))]) is not elsewhere
    assert not asked(fingerprint("json://127.0.0.1:1/another"), [key("a")])
    assert not asked(CHAT, [key("a"), key("b")])
