"""Stored reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallwatch_dashboard.uploads.reports import Reports
from stallwatch_rules.records import Diagnosis, Series


def test_stored_report_round_trips(tmp_path: Path) -> None:
    reports = Reports(tmp_path, clock=lambda: 1_795_000_000.0)
    found = Diagnosis("failed", notes=["x"], series=[Series("loss", 0, [1, 2], [0.5, None])])
    kept = reports.keep(found, ["a.log"], "en", "lines")
    again = reports.load(kept.id)
    assert again is not None and again.diagnosis == found and again.names == ["a.log"]
    assert [item.id for item in reports.all()] == [kept.id]
    reports.delete(kept.id)
    reports.delete(kept.id)
    assert reports.load(kept.id) is None and reports.all() == []


def test_stored_report_contains_no_secret(tmp_path: Path) -> None:
    token = "hf_" + "aB3" * 12
    reports = Reports(tmp_path)
    reports.keep(Diagnosis("failed", notes=[f"login with {token}"]), [], "en")
    assert all(token.encode() not in path.read_bytes() for path in (tmp_path / "reports").iterdir())


def test_reports_are_sorted_and_corrupt_ones_skipped(tmp_path: Path) -> None:
    times = iter([1_795_000_000.0, 1_795_000_100.0])
    reports = Reports(tmp_path, clock=lambda: next(times))
    first, second = (reports.keep(Diagnosis("healthy"), [], "en") for _ in range(2))
    (tmp_path / "reports" / "20260101-000000-00000000.msgpack").write_bytes(b"\xff not ours")
    (tmp_path / "reports" / "notes.txt").write_text("not ours either")
    assert [kept.id for kept in reports.all()] == [second.id, first.id]


@pytest.mark.parametrize("wanted", ["../secrets", "", "20260101-000000-00000000/../x", "x" * 500])
def test_report_id_cannot_leave_the_folder(tmp_path: Path, wanted: str) -> None:
    (tmp_path / "secrets.msgpack").write_bytes(b"x")
    reports = Reports(tmp_path)
    assert reports.load(wanted) is None
    reports.delete(wanted)
    assert (tmp_path / "secrets.msgpack").exists()
