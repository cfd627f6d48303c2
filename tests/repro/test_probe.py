"""The probe in real ranks sees events that the log hides, and has no visible effect."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import SHORT, Probed, forked, launch, printed, rank_logs, torchrun
from prometheus_client.parser import text_string_to_metric_families
from record import environment

from stallwatch_exporter.running.command import run_command
from stallwatch_exporter.runs.runfolder import list_runs
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_rules.pages.catalogue import Catalogue

pytestmark = [
    pytest.mark.repro,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"),
]
PROGRAM = str(Path(__file__).with_name("quiet_zero3.py"))


def metrics_of(home: Path) -> dict[str, float]:
    """Return the values that the agent serves now, by name and rank."""
    endpoints = [info.endpoint for info in list_runs(home) if info.endpoint]
    if not endpoints:
        return {}
    with urllib.request.urlopen(endpoints[0], timeout=120) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return {
        f"{sample.name}{sample.labels.get('rank', '')}": sample.value
        for family in families
        for sample in family.samples
    }


def test_steps_and_invalidations_of_a_silent_run_are_counted(
    tmp_path: Path,
    catalogue: Catalogue,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    for name, value in environment(None).items():
        monkeypatch.setenv(name, value)
    scraped: dict[str, float] = {}
    home, seen = tmp_path / "home", tmp_path / "seen"

    def scrape() -> None:
        """Scrape /metrics until both ranks have made their steps, then let them end."""
        until = time.monotonic() + 120
        while not all(scraped.get(f"stallwatch_rank_step{rank}") == 12 for rank in (0, 1)):
            if time.monotonic() > until:
                break
            with contextlib.suppress(OSError):
                scraped.update(metrics_of(home))
        seen.write_text("")

    watcher = threading.Thread(target=scrape)
    watcher.start()
    code = run_command(
        torchrun(PROGRAM, "--report", str(tmp_path), "--hold", str(seen)),
        ExporterSettings(home=home, port=0),
        [],
        catalogue,
    )
    watcher.join()
    out, err = capfdbinary.readouterr()
    assert code == 0, err.decode()
    assert b"trace cache" not in out + err and b"loss" not in out + err
    report = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    for rank in (0, 1):
        assert scraped[f"stallwatch_rank_step{rank}"] == report[rank]["steps"] == 12
        assert scraped[f"stallwatch_loss{rank}"] == pytest.approx(report[rank]["losses"][-1], rel=1e-5)
        # The trace is invalidated at the fourth, eighth and twelfth step, and recorded again by the next
        # step.
        assert scraped[f"stallwatch_trace_cache_invalidations_total{rank}"] == 3
        assert scraped[f"stallwatch_grad_norm{rank}"] > 0
        assert scraped[f"stallwatch_rank_resident_bytes{rank}"] > 1e7
    assert scraped["stallwatch_steps_total"] == 12
    events = [json.loads(line) for line in next(home.glob("runs/*/events.jsonl")).read_text().splitlines()]
    named = [event for event in events if event["kind"] == "trace-cache"]
    assert {event["rank"] for event in named} == {0, 1}
    assert named[0]["how"] == "mismatch"
    assert (named[0]["expected_name"], named[0]["got_name"]) == ("blocks.0 (Block)", "blocks.2 (Block)")


def test_count_equals_the_number_of_printed_messages(
    probed_run: Callable[..., Probed],
) -> None:
    """DeepSpeed prints its messages on request, one for each invalidation."""
    run = probed_run("healthy.py", "--changing-order", "--pace", "0.1", *SHORT)
    assert run.code == 0, printed(run.logs)
    counted = {}
    for reader in run.rings():
        last = reader.read().records[-1].values
        counted[reader.header.rank] = last["invalidations_mismatch"] + last["invalidations_short"]
        assert reader.faults == 0
    messages = len(re.findall(r"Invalidate trace cache @ step", printed(run.logs)))
    assert counted == {0: messages, 1: messages}
    assert messages > 0


@pytest.mark.parametrize("options", [(), ("--fail",)], ids=["healthy", "failing"])
def test_ranks_print_the_same_with_and_without_a_probe(
    tmp_path: Path, probed_run: Callable[..., Probed], options: tuple[str, ...]
) -> None:
    logs = tmp_path / "logs"
    code, launcher = launch(forked("quiet_zero3.py", *options, logs=logs), environment(None))
    run = probed_run("quiet_zero3.py", *options)
    assert code == run.code == (1 if options else 0), launcher + run.launcher
    plain, watched = ([path.read_bytes() for path in rank_logs(folder)] for folder in (logs, run.logs))
    assert len(plain) == 4
    assert [without_times(each) for each in watched] == [without_times(each) for each in plain]
    assert len(run.rings()) == 2


def without_times(text: bytes) -> bytes:
    """Return the text without times, which differ between any two runs."""
    return re.sub(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}|\d\d:\d\d:\d\d\.\d+ \d+", b"", text)
