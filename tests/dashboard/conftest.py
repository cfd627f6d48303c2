"""Runs, incidents and metrics endpoints as agents leave and serve them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import start_http_server

from stallwatch_dashboard.data.source import close_shared
from stallwatch_dashboard.settings import DashboardSettings, to_environment
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.runs.copies import CriRecord, format_record
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.serving.metrics import RunMetrics

sys.path.insert(0, str(Path(__file__).parent))  # for drivenpages.py

NOW = 1_795_000_000.0


@pytest.fixture(scope="session", autouse=True)
def components_looked_for_once() -> Iterator[None]:
    """Streamlit reads the metadata of all installed packages for every ``AppTest``, seconds each time."""
    with pytest.MonkeyPatch.context() as patched:
        with contextlib.suppress(ImportError):  # tests that need no page run without Streamlit, too
            from streamlit.components.v2 import manifest_scanner as scanner

            found = functools.cache(scanner.scan_component_manifests)
            patched.setattr(scanner, "scan_component_manifests", found)
        yield


@pytest.fixture(autouse=True)
def agents_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of these tests began before this process did, and yet it is their agent."""
    monkeypatch.setattr(
        "stallwatch_dashboard.data.overview.agent_alive", lambda info: info.pid == os.getpid()
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty state folder."""
    return tmp_path / "home"


@pytest.fixture
def make_run(home: Path) -> Callable[..., RunFolder]:
    """Make a run's folder: ``make_run("name", state="training", lines={0: [...]})``; times end at `now`."""

    def make(
        name: str, *, now: float = NOW, lines: dict[int | None, list[str]] | None = None, **info: Any
    ) -> RunFolder:
        folder = RunFolder.create(name, ["torchrun", "train.py"], home=home, now=now - 100)
        for rank, texts in (lines or {}).items():
            path = folder.path / ("output.log" if rank is None else f"ranks/rank{rank}.log")
            with path.open("ab") as out:
                for number, text in enumerate(texts):
                    at = int((now - 100 + number) * 1e9)
                    out.write(format_record(CriRecord(at, "stdout", True, text.encode())))
        folder.write_info(**{"updated_at": now, "state": "training", **info})
        return folder

    return make


@pytest.fixture
def make_incident() -> Callable[..., Incident]:
    """An open stall of the run ``stuck``; any field may be told otherwise."""

    def make(**changes: Any) -> Incident:
        fields: dict[str, Any] = {
            "run": "stuck",
            "kind": "stall",
            "rule": "silent-hang-no-error",
            "severity": "critical",
            "status": "open",
            "episode": 1,
            "opened_at": NOW - 20,
            "updated_at": NOW,
            "step": 57,
            "total_steps": 900,
            "stalled_seconds": 30.0,
            "threshold_seconds": 30.0,
            **changes,
        }
        fields.setdefault("id", f"{fields['run']}/{fields['kind']}/{fields['rule']}/{fields['episode']}")
        return Incident(**fields)

    return make


@pytest.fixture
def serve_metrics() -> Iterator[Callable[[RunMetrics], str]]:
    """Serve the numbers of a run over real HTTP, as its agent does; gives the endpoint."""
    servers = []

    def serve(metrics: RunMetrics) -> str:
        server, thread = start_http_server(0, addr="127.0.0.1", registry=metrics.registry)
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}/metrics"

    yield serve
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def page_settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DashboardSettings]:
    """Pages run by ``AppTest`` see this state folder; what they started ends with the test."""
    settings = DashboardSettings(home=home, scrape_seconds=0.05)
    for name, value in to_environment(settings).items():
        monkeypatch.setenv(name, value)
    yield settings
    close_shared()


@pytest.fixture
def wait_for() -> Callable[..., None]:
    """Wait until something is true that another thread or process brings about; fail after a while."""

    def wait(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
            time.sleep(0.02)

    return wait


@pytest.fixture(scope="session")
def ask_app() -> Callable[[Any, dict[str, Any]], list[MutableMapping[str, Any]]]:
    """What an ASGI application sends in answer to a scope. Browser tests keep a loop in the main thread."""

    def ask(app: Any, scope: dict[str, Any]) -> list[MutableMapping[str, Any]]:
        sent: list[MutableMapping[str, Any]] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        async def receive() -> MutableMapping[str, Any]:
            return {}

        with ThreadPoolExecutor(1) as apart:
            apart.submit(asyncio.run, app(scope, receive, send)).result()
        return sent

    return ask
