"""stallwatch alerts list, ack, note, silence, deliveries and send, on a database with incidents."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path

import pytest
from click.testing import Result
from msgspec.structs import replace

from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.planning import Draft
from stallwatch_alerts.notice import fingerprint, incident_notice
from stallwatch_alerts.people import OperatorActions
from stallwatch_alerts.storage.tables import MESSAGES
from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_rules.endings import Ending

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


def test_incident_is_acknowledged_by_its_id_or_its_run(stallwatch: Stallwatch, store: IncidentStore) -> None:
    result = stallwatch("alerts", "ack", ID, "--comment", "on it")
    assert (result.exit_code, result.stdout) == (0, f"acknowledged {ID}\n")
    result = stallwatch("alerts", "ack", "other", "nothing")
    assert result.exit_code == 1
    assert result.stdout == "acknowledged other/stall/x/1\n" and "no incident nothing" in result.stderr
    assert OperatorActions(store.engine).is_acknowledged(ID)
    assert [(item.what, item.text) for item in store.history(ID)][1:] == [
        ("acknowledged", ""),
        ("note", "on it"),
    ]
    rows = stallwatch("alerts", "list").stdout.splitlines()[1:]
    assert len(rows) == 2 and all(row.split()[-1] == "yes" for row in rows)


def test_note_is_added_to_an_incident(stallwatch: Stallwatch, store: IncidentStore) -> None:
    assert stallwatch("alerts", "note", ID, "a bad cable").exit_code == 0
    refused = stallwatch("alerts", "note", ID, " ")
    assert refused.exit_code == 2 and "TEXT is empty" in refused.stderr
    assert stallwatch("alerts", "note", "none/stall/x/1", "x").exit_code == 1
    assert stallwatch("alerts", "note", "myr", "again").stdout == f"note added to {ID}\n"
    assert [item.text for item in store.history(ID)[-2:]] == ["a bad cable", "again"]


def test_unambiguous_prefix_of_a_name_is_accepted(stallwatch: Stallwatch, store: IncidentStore) -> None:
    store.upsert(incident("otter/stall/x/1"))
    store.upsert(incident("myrun/finding/y/1"))
    assert stallwatch("alerts", "ack", "othe").stdout == "acknowledged other/stall/x/1\n"
    assert stallwatch("alerts", "ack", "myrun/f").stdout == "acknowledged myrun/finding/y/1\n"
    unclear = stallwatch("alerts", "ack", "ot")
    assert unclear.exit_code == 1 and "other, otter" in unclear.stderr
    unclear = stallwatch("alerts", "note", "myrun", "which?")
    assert unclear.exit_code == 1 and f"myrun/finding/y/1, {ID}" in unclear.stderr
    assert stallwatch("alerts", "list", "--run", "ott").stdout.splitlines()[1].startswith("otter/stall/x/1 ")


def test_closed_incidents_are_listed_and_acknowledging_one_says_that_it_is_closed(
    stallwatch: Stallwatch, store: IncidentStore
) -> None:
    gone = replace(incident(), status="resolved", resolved_at=time.time())
    store.upsert(replace(gone, resolution="unknown"))
    store.upsert(replace(gone, id="other/stall/x/1", run="other", resolution="recovered"))
    empty = stallwatch("alerts", "list")
    assert empty.stdout == "" and "--ended" in empty.stderr
    ended = stallwatch("alerts", "list", "--ended").stdout
    assert ended == stallwatch("alerts", "list", "--all").stdout
    assert [line.split()[0] for line in ended.splitlines()] == ["ID", ID, "other/stall/x/1"]
    assert "agent gone" in ended and "recovered" in ended
    result = stallwatch("alerts", "ack", "myrun")
    assert result.exit_code == 0 and "agent gone at 20" in result.stdout
    assert OperatorActions(store.engine).is_acknowledged(ID)
    result = stallwatch("alerts", "ack", "other")
    assert result.exit_code == 1
    assert "other no longer has an open incident" in result.stderr
    assert "other/stall/x/1: recovered at 20" in result.stderr


def test_open_incident_of_a_lost_agent_is_marked(
    stallwatch: Stallwatch, store: IncidentStore, tmp_path: Path
) -> None:
    folder = RunFolder.create("myrun", ["python"], home=tmp_path / "stallwatch-home", now=time.time())
    assert "agent gone" not in stallwatch("alerts", "list").stdout
    folder.write_info(pid=2**22 + 1)
    rows = stallwatch("alerts", "list").stdout.splitlines()[1:]
    assert ["agent gone" in row for row in rows] == [row.startswith("myrun/") for row in rows]
    folder.write_info(ended_at=time.time(), ending=Ending("unknown", None))
    rows = stallwatch("alerts", "list").stdout.splitlines()[1:]
    assert ["open, no longer watched" in row for row in rows] == [row.startswith("myrun/") for row in rows]


def test_open_incident_counts_as_watched_while_any_agent_of_its_run_lives(
    stallwatch: Stallwatch, store: IncidentStore, tmp_path: Path
) -> None:
    identity = RunIdentity(key="5f" * 8, job="8123.0", origin="slurm")
    store.upsert(incident("sft-8123.0/stall/x/1"))
    for number in range(3):
        now = time.time() + number
        home = tmp_path / "stallwatch-home"
        folder = RunFolder.create("sft", ["python"], home=home, now=now, identity=identity)
        gone = {"pid": 2**22 + 1} if number < 2 else {"ended_at": now}
        assert "agent gone" not in stallwatch("alerts", "list", "--run", "sft-8123.0").stdout
        folder.write_info(**gone)
    assert "agent gone" in stallwatch("alerts", "list", "--run", "sft-8123.0").stdout


def test_misspelled_rule_is_refused_with_a_suggestion(stallwatch: Stallwatch, store: IncidentStore) -> None:
    result = stallwatch("alerts", "silence", "--rule", "cuda-oon")
    assert result.exit_code == 2 and "did you mean cuda-oom" in result.stderr
    for rule in ("cuda-oom", "cuda-*", "unknown-failure", "StallwatchAgentGone"):
        assert stallwatch("alerts", "silence", "--rule", rule).exit_code == 0, rule
    assert len(OperatorActions(store.engine).silences(time.time())) == 4


def test_answers_and_errors_are_in_the_language_of_the_terminal(
    stallwatch: Stallwatch, store: IncidentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLWATCH_UI_LANGUAGE", "zh")
    assert stallwatch("alerts", "ack", ID).stdout == f"已确认 {ID}\n"
    assert "没有事件 nothing" in stallwatch("alerts", "ack", "nothing").stderr
    assert "编号" in stallwatch("alerts", "list").stdout
    assert "请指明要静默哪些事件" in stallwatch("alerts", "silence").stderr
    assert "还没有配置通知渠道" in stallwatch("alerts", "test").stderr
    assert stallwatch("alerts", "send", "--wait", "0.1").stdout == "已发送 0 条消息\n"


def test_silence_is_created_and_ended(stallwatch: Stallwatch, store: IncidentStore) -> None:
    result = stallwatch("alerts", "silence", "--run", "my*", "--for", "2h", "--comment", "known")
    assert result.exit_code == 0 and result.stdout.startswith("silence 1 lasts until 2")
    assert "--end 1" in result.stdout
    careless = stallwatch("alerts", "silence")
    assert careless.exit_code == 2 and "--all" in careless.stderr
    (silence,) = OperatorActions(store.engine).silences(time.time())
    assert silence.run == "my*" and 7000 < silence.ends_at - time.time() <= 7200
    assert "my*  known" in stallwatch("alerts", "list").stdout
    assert stallwatch("alerts", "silence", "--end", "1").exit_code == 0
    assert stallwatch("alerts", "silence", "--end", "1").exit_code == 1
    for wrong in ("soon", "0h", "2w"):
        result = stallwatch("alerts", "silence", "--all", "--for", wrong)
        assert result.exit_code == 2 and f"{wrong} is not a duration" in result.output


def test_unreachable_alertmanager_is_reported(
    stallwatch: Stallwatch, store: IncidentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLWATCH_ALERTS_ALERTMANAGER_URL", "http://u:s3cr3tpw@127.0.0.1:1")
    result = stallwatch("alerts", "silence", "--run", "a")
    assert result.exit_code == 1 and "Alertmanager did not accept" in result.stderr
    assert "s3cr3tpw" not in result.output


def test_waiting_messages_are_listed_and_sent(
    stallwatch: Stallwatch, store: IncidentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = Outbox(store.engine)
    notice = incident_notice(incident(), "en", None)
    draft = Draft(fingerprint(URL), "json://127.0.0.1:1/****", "myrun", notice, (notice.key,), ID)
    outbox.put(lambda *_: [draft], time.time())
    result = stallwatch("alerts", "deliveries")
    assert "waiting" in result.stdout and "[myrun] stalled" in result.stdout
    monkeypatch.setenv("STALLWATCH_ALERTS_URLS", URL)
    result = stallwatch("alerts", "send", "--wait", "0.5")
    assert result.exit_code == 1
    assert "1 message waiting for json://127.0.0.1:1/****: rejected so far: connection" in result.stderr
    assert "s3cr3t" not in result.output
    monkeypatch.delenv("STALLWATCH_ALERTS_URLS")
    result = stallwatch("alerts", "send", "--wait", "0.5")
    assert result.exit_code == 1 and "the configuration contains no URL of this chat" in result.stderr
    tonight = time.time() + 3600
    for number, escalation in enumerate((False, True), 2):
        later = incident(f"myrun/stall/x/{number}")
        notice = incident_notice(later, "en", None)
        kept = changed(draft, notice=notice, keys=(notice.key,), not_before=tonight, escalation=escalation)
        outbox.put(lambda *_, kept=kept: [kept], time.time())  # type: ignore[misc]
    with store.engine.begin() as connection:
        connection.execute(MESSAGES.delete().where(MESSAGES.c.not_before == 0))
    monkeypatch.setenv("STALLWATCH_ALERTS_URLS", URL)
    result = stallwatch("alerts", "send", "--wait", "0.5")
    assert result.exit_code == 0 and "quiet hours last until 20" in result.stderr
    assert "sent at 20" in result.stderr
    assert "1" in stallwatch("alerts", "deliveries", "--run", "myrun").stdout
    assert "no message" in stallwatch("alerts", "deliveries", "--run", "none").stderr


def test_database_that_cannot_be_opened_is_reported_in_one_line(
    stallwatch: Stallwatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLWATCH_ALERTS_INCIDENTS_URL", "sqlite:////proc/none/s3cr3t.db")
    result = stallwatch("alerts", "list")
    assert result.exit_code == 1 and "cannot be opened" in result.stderr
    assert "s3cr3t" not in result.output and "Traceback" not in result.output


@pytest.mark.parametrize(
    ("language", "how"), [("en", "not fixed when the run ended"), ("zh", "任务结束时仍未解决")]
)
def test_unfixed_findings_of_an_ended_run_are_listed_and_can_be_acknowledged(
    stallwatch: Stallwatch,
    store: IncidentStore,
    monkeypatch: pytest.MonkeyPatch,
    language: str,
    how: str,
) -> None:
    monkeypatch.setenv("STALLWATCH_UI_LANGUAGE", language)
    name = "done/finding/checkpoint-archive-corrupt/1"
    left = replace(incident(name), kind="finding", rule="checkpoint-archive-corrupt", resolution="unmended")
    left = replace(left, status="resolved", resolved_at=left.updated_at)
    store.upsert(left)
    assert name not in stallwatch("alerts", "list").stdout
    (row,) = [line for line in stallwatch("alerts", "list", "--ended").stdout.splitlines() if name in line]
    assert how in row
    assert stallwatch("alerts", "ack", "done").exit_code == 0
    assert OperatorActions(store.engine).is_acknowledged(name)
