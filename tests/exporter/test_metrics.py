"""The metrics page: documented names, valid content by promtool, right values, an occupied port."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from everymetric import agent, full
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stallwatch_alerts.relay.server import RelayMetrics
from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.serving.server import serve
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_rules import __version__
from stallwatch_rules.records import Line, Match, Sample


def page(metrics: RunMetrics) -> str:
    return generate_latest(metrics.registry).decode()


def series(metrics: RunMetrics) -> dict[str, float]:
    """Return every sample by its series as written, without the label of the run."""
    found = {}
    for family in text_string_to_metric_families(page(metrics)):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "run" and v)
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_former_coordinator_publishes_no_host_counts() -> None:
    metrics = RunMetrics("sft")
    metrics.hosts(3, 2, 1)
    assert series(metrics)["stallwatch_hosts{state=expected}"] == 3
    metrics.hosts(None, None, None)
    assert not [name for name in series(metrics) if name.startswith("stallwatch_hosts")]


def test_metrics_have_the_given_values() -> None:
    found = series(full())
    assert found["stallwatch_loss"] == 0.5
    assert found["stallwatch_steps_total"] == found["stallwatch_step"] == 3
    assert found["stallwatch_target_steps"] == 100
    assert found["stallwatch_last_step_timestamp_seconds{rank=0}"] == 1234.5
    assert found["stallwatch_phase{stallwatch_phase=train}"] == 1
    assert found["stallwatch_phase{stallwatch_phase=init}"] == 0
    assert found["stallwatch_stall_threshold_seconds{phase=train}"] == 30
    assert found["stallwatch_trace_cache_invalidations_total{rank=1}"] == 1
    assert found["stallwatch_rule_matches_total{rule=zero3-trace-cache-invalidated}"] == 1
    assert found["stallwatch_incident_open{rule=cuda-oom,severity=critical}"] == 1
    assert found["stallwatch_step_duration_seconds_count"] == 1
    (identity,) = [name for name in found if name.startswith("stallwatch_run_info{")]
    assert "torch=2.13.0" in identity and "host=node1" in identity
    assert found["stallwatch_log_lines_total"] == 10


def test_run_over_hosts_publishes_job_and_host_counts() -> None:
    found = series(full())
    assert [found[f"stallwatch_hosts{{state={state}}}"] for state in ("expected", "reporting", "silent")] == [
        3,
        2,
        1,
    ]
    (identity,) = [name for name in found if name.startswith("stallwatch_run_info{")]
    assert "attempt=1," in identity and "job_id=8123.0" in identity and "node=0" in identity


def test_run_on_one_host_publishes_no_job_and_no_host_counts() -> None:
    metrics = RunMetrics("sft-1")
    metrics.identity(agent("node1"), {})
    found = series(metrics)
    assert f"stallwatch_run_info{{host=node1,stallwatch={__version__}}}" in found
    assert not [name for name in found if name.startswith("stallwatch_hosts")]


def test_number_of_rank_labels_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stallwatch_exporter.serving.metrics.MOST_LABELS", 5)
    metrics = RunMetrics("sft-1")
    for rank in (10**12, -1, *range(50), 3):
        metrics.sample(Sample(rank, 1.0, values={"loss": float(rank)}))
        metrics.stepped(rank, 1.0)
        metrics.warning(rank)
    metrics.ranks({2: True, 49: True})
    found = series(metrics)
    assert {name for name in found if name.startswith("stallwatch_loss")} == {
        "stallwatch_loss",
        *(f"stallwatch_loss{{rank={rank}}}" for rank in range(5)),
    }
    assert (found["stallwatch_warnings_total"], found["stallwatch_warnings_total{rank=3}"]) == (47, 2)
    assert [name for name in found if "rank_up" in name] == ["stallwatch_rank_up{rank=2}"]


def test_longest_interval_between_checkpoints_is_published() -> None:
    metrics = RunMetrics("sft-1")
    metrics.saved(1000.0)
    assert "stallwatch_checkpoint_interval_seconds" not in series(metrics)
    for when in (1300.0, 1400.0):
        metrics.saved(when)
    found = series(metrics)
    assert found["stallwatch_checkpoint_interval_seconds"] == 300
    assert found["stallwatch_last_checkpoint_timestamp_seconds"] == 1400


def test_every_series_has_the_run_and_no_log_text() -> None:
    for family in text_string_to_metric_families(page(full())):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("run") == "sft-1"
            known = {"rank", "rule", "severity", "phase", "le", "stallwatch_phase", "ending", "state"}
            assert set(labels) <= known or sample.name == "stallwatch_run_info"
            assert not sample.name.endswith("_created")


def test_new_run_publishes_counters_and_thresholds() -> None:
    found = series(RunMetrics("sft-1"))
    assert found["stallwatch_steps_total"] == found["stallwatch_stalled_seconds_total"] == 0
    assert found["stallwatch_phase{stallwatch_phase=init}"] == 1


def test_restart_from_a_checkpoint_does_not_lower_the_counter() -> None:
    metrics = RunMetrics("sft-1")
    for step in (100, 150, 120, 121, None, 130):
        metrics.progress(step, None)
    found = series(metrics)
    assert found["stallwatch_step"] == 130
    assert found["stallwatch_steps_total"] == 160


def test_skipped_steps_are_not_counted_twice() -> None:
    metrics = RunMetrics("sft-1")
    for values in ({"overflow": 1.0}, {"overflow": 1.0}, {"skipped_steps": 2.0}, {"skipped_steps": 5.0}):
        metrics.sample(Sample(rank=0, time=None, values=values))
    assert series(metrics)["stallwatch_skipped_steps_total{rank=0}"] == 5


def test_values_of_the_probe_have_precedence_over_the_log() -> None:
    metrics = RunMetrics("sft-1")
    line = Line(text="x", source="out", number=1)
    metrics.hooked(Record(0, 1, 1.0, {"step": 5.0, "loss": 0.5, "invalidations_mismatch": 0.0}))
    metrics.sample(Sample(rank=0, time=1.0, step=5, values={"loss": 9.0, "grad_norm": 1.0}))
    metrics.match(Match("zero3-trace-cache-invalidated", line, {}))
    both = {"invalidations_mismatch": 2.0, "invalidations_short": 1.0}
    metrics.hooked(Record(0, 2, 2.0, both))
    found = series(metrics)
    assert found["stallwatch_loss{rank=0}"] == 0.5
    assert found["stallwatch_grad_norm{rank=0}"] == 1.0
    assert found["stallwatch_rank_step{rank=0}"] == 5
    counted = {name: n for name, n in found.items() if name.startswith("stallwatch_trace_cache")}
    assert counted == {"stallwatch_trace_cache_invalidations_total{rank=0}": 3}
    assert found["stallwatch_rule_matches_total{rule=zero3-trace-cache-invalidated}"] == 1


def test_value_of_the_log_is_replaced_by_the_rank() -> None:
    """The first lines of a plain loop come before the first record, and have no rank."""
    metrics = RunMetrics("sft-1")
    given = {"loss": float("nan"), "learning_rate": 0.1}
    metrics.sample(Sample(None, 1.0, step=1, values=given, series="dict"))
    metrics.hooked(Record(0, 1, 1.5, {"step": 2.0, "loss": 0.5}))
    metrics.hooked(Record(1, 1, 1.6, {"step": 2.0, "loss": 0.6}))
    metrics.sample(Sample(None, 2.0, step=2, values=given, series="dict"))
    found = series(metrics)
    shown = {name: value for name, value in found.items() if name.startswith("stallwatch_loss")}
    assert shown == {"stallwatch_loss{rank=0}": 0.5, "stallwatch_loss{rank=1}": 0.6}
    assert found["stallwatch_learning_rate"] == 0.1  # only the log contains the learning rate
    assert page(metrics).count("stallwatch_loss{") == 2


def test_restarted_rank_continues_its_counters() -> None:
    metrics = RunMetrics("sft-1")
    for total in (2.0, 5.0, 1.0, 1.0):
        metrics.hooked(Record(1, 1, 1.0, {"invalidations_mismatch": total}))
    assert series(metrics)["stallwatch_trace_cache_invalidations_total{rank=1}"] == 6


def test_dropped_records_follow_the_total() -> None:
    metrics = RunMetrics("sft-1")
    for total in (0, 3, 3, 7):
        metrics.dropped(total)
    assert series(metrics)["stallwatch_dropped_records_total"] == 7


def test_agents_in_one_process_are_separate() -> None:
    one, other = full(), RunMetrics("other")
    assert 'run="other"' not in page(one) and 'run="sft-1"' not in page(other)


def test_documented_metrics_match_the_published_ones(root: Path) -> None:
    text = "".join(page.read_text() for page in (root / "docs").rglob("*.md"))
    documented = re.findall(r"^\| `(stallwatch_\w+)`", text, re.MULTILINE)
    exported = set()
    for family in (*full().registry.collect(), *RelayMetrics().registry.collect()):
        exported.add(
            {"counter": f"{family.name}_total", "info": f"{family.name}_info"}.get(family.type, family.name)
        )
        assert family.documentation.endswith(".")
    assert sorted(documented) == sorted(exported)


# --- the endpoint


@pytest.mark.server
def test_promtool_accepts_the_endpoint() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    server = serve(full().registry, ExporterSettings(port=0), pytest.fail)
    assert server is not None
    with urllib.request.urlopen(server.url, timeout=120) as answer:
        text = answer.read()
    server.close()
    assert text.count(b"# TYPE stallwatch_") == 39
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, timeout=120)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_port_in_use_is_skipped_with_a_notice() -> None:
    messages: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = serve(full().registry, ExporterSettings(port=port), messages.append)
        assert server is not None
        assert messages == [
            f"port {port} is in use; /metrics is served on port {server.url.split(':')[2].split('/')[0]}"
        ]
        with urllib.request.urlopen(server.url, timeout=120) as answer:
            assert b"stallwatch_loss" in answer.read()
        server.close()


def test_reserved_port_is_skipped_unless_requested() -> None:
    messages: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        only = ExporterSettings(port=port, port_tries=1, reserved_ports=(port + 1,))
        assert serve(full().registry, only, messages.append) is None
    server = serve(full().registry, replace(only, reserved_ports=(port,)), pytest.fail)
    assert server is not None
    server.close()


def test_run_continues_without_a_free_port() -> None:
    messages: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve(full().registry, ExporterSettings(port=port, port_tries=0), messages.append) is None
    assert len(messages) == 1 and "in use" in messages[0]
    assert serve(full().registry, ExporterSettings(host="192.0.2.1"), messages.append) is None
    assert "cannot be served on 192.0.2.1" in messages[1]
