"""What version 0.1 stored still opens: commit e508561 watched a run that ran out of memory."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest

import stallwatch
from stallwatch_alerts.messages.compose import render
from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.watching.incidents import read_incidents
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.json import to_json

KEPT = Path(__file__).with_name("release_0_1")
RUN = KEPT / "runs" / "sft"


@pytest.mark.parametrize(
    ("language", "title", "fix"),
    [
        ("en", "The GPU ran out of memory", "Lower per_device_train_batch_size"),
        # Its page has other fixes by now: what was advised stays in the words in which it was stored.
        ("zh", "显存", "Lower per_device_train_batch_size"),
    ],
)
def test_its_incidents_are_shown_in_either_language(
    tmp_path: Path, catalogue: Catalogue, language: str, title: str, fix: str
) -> None:
    file = tmp_path / "incidents.db"
    with sqlite3.connect(file) as database:
        database.executescript((KEPT / "incidents.sql").read_text())
    (incident,) = IncidentStore(f"sqlite:///{file}").list()
    assert [incident.id] == [one.id for one in read_incidents(RUN)]
    message = render(incident, language, catalogue.pages[incident.rule])
    assert title in message.title and fix in message.text
    assert "CUDA out of memory. Tried to allocate 2.00 GiB" in message.text


def test_its_run_folder_gets_the_verdict_that_it_had() -> None:
    kept = msgspec.json.decode((RUN / "diagnosis.json").read_bytes(), type=Diagnosis)
    found = stallwatch.diagnose(RUN)
    assert kept.primary is not None and found.primary is not None
    assert (found.verdict, found.primary.rule, found.primary.title) == (
        kept.verdict,
        kept.primary.rule,
        kept.primary.title,
    )
    assert found.ending == "The command exited with 1."
    assert msgspec.json.decode(to_json(kept))["primary"]["fixes"] == kept.primary.fixes
