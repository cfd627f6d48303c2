"""The Health page reports which data the dashboard receives."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import stallwatch
from stallwatch_dashboard import health
from stallwatch_dashboard.data.scraper import TargetStatus

NOW = 1_000.0


class Told:
    """Store with only the newest values of some runs."""

    def __init__(self, **lost: float) -> None:
        self._lost = lost

    def latest(self, run: str, metric: str) -> dict[tuple[int | None, str], float]:
        assert metric == "stallwatch_dropped_records_total"
        return {(None, ""): self._lost[run]} if run in self._lost else {}

    def series(self, run: str, metric: str, since: float | None = None) -> pd.DataFrame:
        raise AssertionError("no history is needed")


def test_failing_sources_are_listed_first() -> None:
    targets = [
        TargetStatus("http://a", "good", answered=NOW - 1, scrapes=9),
        TargetStatus("http://b", "late", answered=NOW - 60, scrapes=9, failures=3, error="refused"),
        TargetStatus("http://c", None, scrapes=2, failures=2, error="refused"),
        TargetStatus("http://d", "over", answered=NOW - 900, scrapes=9, failures=3, error="refused"),
    ]
    found = health.sources_of(targets, {"over"}, NOW)
    assert [(health.state_of(item, NOW), item.run, item.lag(NOW)) for item in found] == [
        ("silent", None, None),
        ("late", "late", 60.0),
        ("answers", "good", 1.0),
    ]


def test_only_runs_with_losses_are_listed() -> None:
    found = health.losses(Told(a=0, b=3, c=12), ["a", "b", "c", "d"])
    assert list(found.items()) == [("c", 12), ("b", 3)]


def test_disk_usage_and_versions_are_shown(tmp_path: Path) -> None:
    (tmp_path / "metrics.duckdb").write_bytes(b"x" * 100)
    found = health.disk(tmp_path)
    assert found is not None and found[0] == 100 and found[1] > 0
    (tmp_path / "metrics.duckdb.wal").write_bytes(b"x" * 11)
    assert (found := health.disk(tmp_path)) is not None and found[0] == 111
    assert health.disk(tmp_path / "missing") is None
    assert {"python", "streamlit"} <= health.versions().keys()
    assert health.versions()["stallwatch"] == stallwatch.__version__
