"""Limits of a metrics page, and the values that are read from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from stallwatch_dashboard.data import metrics_page
from stallwatch_dashboard.data.metrics_page import Reading, ScrapeError, parse
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_rules.records import Sample


def test_metrics_page_of_an_agent_is_read() -> None:
    metrics = RunMetrics("grpo")
    metrics.progress(12, 900)
    metrics.step_took(2.0, 3)
    metrics.sample(Sample(rank=3, time=None, values={"loss": 0.5}))
    metrics.incident("silent-hang-no-error", "critical", True)
    found = parse(generate_latest(metrics.registry).decode())
    assert Reading("grpo", "stallwatch_step", None, "", 12.0) in found
    assert Reading("grpo", "stallwatch_target_steps", None, "", 900.0) in found
    assert Reading("grpo", "stallwatch_loss", 3, "", 0.5) in found
    assert Reading("grpo", "stallwatch_step_duration_seconds_sum", None, "", 6.0) in found
    labels = '{"rule": "silent-hang-no-error", "severity": "critical"}'
    assert Reading("grpo", "stallwatch_incident_open", None, labels, 1.0) in found
    assert not [item for item in found if item.metric.endswith("_bucket")]


def test_metrics_of_other_programs_are_ignored() -> None:
    assert parse('# TYPE python_info gauge\npython_info{run="x"} 1\n') == []


@pytest.mark.parametrize(
    "text",
    [
        "<!doctype html><html><body>Hello</body></html>",
        'stallwatch_step{run="x" 1',
        "stallwatch_step one\n",
        '{"json": true}',
    ],
)
def test_invalid_metrics_page_is_refused(text: str) -> None:
    with pytest.raises(ScrapeError):
        parse(text)


def test_metrics_page_with_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_page, "MOST_READINGS", 10)
    with pytest.raises(ScrapeError, match="more than 10"):
        parse("\n".join(f'stallwatch_loss{{run="x",rank="{rank}"}} 1' for rank in range(11)) + "\n")


@given(st.text() | st.text(alphabet='stallwatch_{}="\\\n# 10'))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text)
    except ScrapeError:
        pass
