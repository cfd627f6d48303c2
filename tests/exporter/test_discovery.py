"""Endpoints announce themselves to Prometheus, and remove the announcement at the end."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from stallwatch_exporter.rings.presence import process_namespace
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.serving.server import serve
from stallwatch_exporter.settings import ExporterSettings


def entries(folder: Path) -> list[Any]:
    """Return all targets that Prometheus would read from the folder."""
    return [entry for path in folder.glob("*.json") for entry in json.loads(path.read_text())]


def test_endpoint_is_announced_while_it_is_served(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    server = serve(RunMetrics("sft-7b").registry, ExporterSettings(port=0, sd_dir=folder), pytest.fail)
    assert server is not None
    (path,) = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    (entry,) = entries(folder)
    assert entry["targets"] == [server.url.removeprefix("http://").removesuffix("/metrics")]
    assert entry["labels"]["__meta_stallwatch_run"] == "sft-7b"
    assert [name for name in entry["labels"] if not name.startswith("__")] == []
    server.close()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_endpoint_on_all_interfaces_is_announced_by_host_name(tmp_path: Path, host: str) -> None:
    server = serve(CollectorRegistry(), ExporterSettings(host=host, port=0, sd_dir=tmp_path), pytest.fail)
    assert server is not None
    (entry,) = entries(tmp_path)
    assert entry["targets"][0].rpartition(":")[0] == socket.gethostname()
    server.close()


def test_unwritable_folder_is_reported_and_metrics_are_served(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "file").write_text("")
    server = serve(CollectorRegistry(), ExporterSettings(port=0, sd_dir=tmp_path / "file"), said.append)
    assert server is not None
    (line,) = said
    assert line.startswith(
        f"Prometheus cannot discover /metrics: {tmp_path / 'file'}: File exists; set exporter.sd_dir"
    )
    server.close()


def left_behind(folder: Path, name: str, **labels: str) -> Path:
    """Write the announcement of a killed agent."""
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE)
    given = {"pid": gone.stdout.decode().strip(), "namespace": process_namespace()}
    given["host"] = socket.gethostname()
    shown = {f"__meta_stallwatch_{label}": text for label, text in {**given, **labels}.items()}
    path = folder / f"stallwatch-{name}.json"
    path.write_text(json.dumps([{"targets": ["127.0.0.1:1"], "labels": shown}]))
    return path


def test_announcements_of_killed_agents_are_removed(tmp_path: Path) -> None:
    killed = left_behind(tmp_path, "killed")
    boot = left_behind(tmp_path, "last-boot", namespace="another-boot/pid:[1]", pid=str(os.getpid()))
    number_used_again = left_behind(tmp_path, "reused", pid=str(os.getpid()))
    os.utime(number_used_again, (1e9, 1e9))  # this process started later
    kept = [
        left_behind(tmp_path, "alive", pid=str(os.getpid())),
        left_behind(tmp_path, "other-host", host="another"),
        left_behind(tmp_path, "container", namespace=process_namespace().partition("/")[0] + "/pid:[1]"),
    ]
    strange = tmp_path / "stallwatch-strange.json"
    for text in ("", "[]", "7", '[{"labels": 7}]', '[{"labels": {"__meta_stallwatch_host": "x"}}]'):
        strange.write_text(text)
        server = serve(CollectorRegistry(), ExporterSettings(port=0, sd_dir=tmp_path), pytest.fail)
        assert server is not None
        server.close()
    assert not killed.exists() and not boot.exists() and not number_used_again.exists()
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in (*kept, strange)}
