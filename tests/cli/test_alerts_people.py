"""stallwatch alerts list, ack, note, silence, deliveries and send, on a database with incidents."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from stallwatch_alerts.channels import incident_notice
from stallwatch_alerts.delivery.fingerprint import fingerprint
from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.records import Draft
from stallwatch_alerts.people import People
from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.incident import Incident

Stallwatch = Callable[..., Result]
URL = "json://127.0.0.1:1/s3cr3t-hook"
ID = "myrun/stall/x/1"


def incident(name: str = ID) -> Incident:
    return Incident(
        id=name,
        run=name.split("/")[0],
        kind="stall",
        rule="x",
        severity="critical",
        status="open",
        episode=1,
        opened_at=time.time(),
        updated_at=time.time(),
    )


@pytest.fixture
def store(tmp_path: Path, stallwatch: Stallwatch) -> IncidentStore:
    made = IncidentStore.at_home(tmp_path / "stallwatch-home")
    made.upsert(incident())
    made.upsert(incident("other/stall/x/1"))
    return made


def test_an_incident_is_acknowledged_by_its_id_or_its_run(
    stallwatch: Stallwatch, store: IncidentStore
) -> None:
    result = stallwatch("alerts", "ack", ID, "--comment", "on it")
    assert (result.exit_code, result.stdout) == (0, f"acknowledged {ID}\n")
    result = stallwatch("alerts", "ack", "other", "nothing")
    assert result.exit_code == 1
    assert result.stdout == "acknowledged other/stall/x/1\n" and "no incident nothing" in result.stderr
    assert People(store.engine).is_acknowledged(ID)
    assert [(one.what, one.text) for one in store.history(ID)][1:] == [
        ("acknowledged", ""),
        ("note", "on it"),
    ]
    rows = stallwatch("alerts", "list").stdout.splitlines()[1:]
    assert len(rows) == 2 and all(row.split()[-1] == "yes" for row in rows)


def test_a_note(stallwatch: Stallwatch, store: IncidentStore) -> None:
    assert stallwatch("alerts", "note", ID, "a bad cable").exit_code == 0
    assert stallwatch("alerts", "note", "none/stall/x/1", "x").exit_code == 1
    assert store.history(ID)[-1].text == "a bad cable"


def test_a_silence_comes_and_goes(stallwatch: Stallwatch, store: IncidentStore) -> None:
    result = stallwatch("alerts", "silence", "--run", "my*", "--for", "2h", "--comment", "known")
    assert result.exit_code == 0 and result.stdout.startswith("silence 1 until 2")
    assert "--end 1" in result.stdout
    careless = stallwatch("alerts", "silence")
    assert careless.exit_code == 2 and "--all" in careless.stderr
    (silence,) = People(store.engine).silences(time.time())
    assert silence.run == "my*" and 7190 < silence.ends_at - time.time() < 7210
    assert "my*  known" in stallwatch("alerts", "list").stdout
    assert stallwatch("alerts", "silence", "--end", "1").exit_code == 0
    assert stallwatch("alerts", "silence", "--end", "1").exit_code == 1
    assert stallwatch("alerts", "silence", "--all", "--for", "soon").exit_code == 2


def test_alertmanager_that_is_not_there_is_told(
    stallwatch: Stallwatch, store: IncidentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLWATCH_ALERTS_ALERTMANAGER_URL", "http://u:s3cr3tpw@127.0.0.1:1")
    result = stallwatch("alerts", "silence", "--run", "a")
    assert result.exit_code == 1 and "Alertmanager did not take" in result.stderr
    assert "s3cr3tpw" not in result.output


def test_messages_that_wait_are_listed_and_sent(
    stallwatch: Stallwatch, store: IncidentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = Outbox(store.engine)
    notice = incident_notice(incident(), "en", None)
    draft = Draft(fingerprint(URL), "json://127.0.0.1:1/****", "myrun", notice, (notice.key,), ID)
    outbox.put(lambda told: [draft], time.time())
    result = stallwatch("alerts", "deliveries")
    assert "waiting" in result.stdout and "[myrun] stalled" in result.stdout
    monkeypatch.setenv("STALLWATCH_ALERTS_URLS", URL)
    result = stallwatch("alerts", "send", "--wait", "0.5")
    assert result.exit_code == 1 and "1 messages still wait" in result.stderr
    assert "s3cr3t" not in result.output
    monkeypatch.delenv("STALLWATCH_ALERTS_URLS")
    result = stallwatch("alerts", "send", "--wait", "0.5")
    assert result.exit_code == 0 and "not configured here" in result.stderr
    assert "1" in stallwatch("alerts", "deliveries", "--run", "myrun").stdout
    assert "no message" in stallwatch("alerts", "deliveries", "--run", "none").stderr


def test_a_database_that_cannot_be_opened_is_one_line(
    stallwatch: Stallwatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLWATCH_ALERTS_INCIDENTS_URL", "sqlite:////proc/none/s3cr3t.db")
    result = stallwatch("alerts", "list")
    assert result.exit_code == 1 and "cannot be opened" in result.stderr
    assert "s3cr3t" not in result.output and "Traceback" not in result.output
