"""Runs, incidents and metrics endpoints in the form in which agents write and serve them."""

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
    """Cache the search for components: Streamlit reads all packages' metadata for every ``AppTest``."""
    with pytest.MonkeyPatch.context() as patched:
        with contextlib.suppress(ImportError):  # tests without pages also run without Streamlit
            from streamlit.components.v2 import manifest_scanner as scanner

            found = functools.cache(scanner.scan_component_manifests)
            patched.setattr(scanner, "scan_component_manifests", found)
        yield


@pytest.fixture(autouse=True)
def agents_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat this process as the agent of the tests' runs, although it started after them."""
    monkeypatch.setattr(
        "stallwatch_dashboard.data.overview.agent_alive", lambda info: info.pid == os.getpid()
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return an empty state folder."""
    return tmp_path / "home"


@pytest.fixture
def make_run(home: Path) -> Callable[..., RunFolder]:
    """Return a function that makes a run's folder.

    For example, ``make_run("name", state="training", lines={0: [...]})``; times end at `now`.
    """

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
    """Return a function that builds an open stall of the run ``stuck``, with changed fields."""

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
        fields.setdefault("stalled_since", fields["opened_at"] - fields["threshold_seconds"])
        fields.setdefault("id", f"{fields['run']}/{fields['kind']}/{fields['rule']}/{fields['episode']}")
        return Incident(**fields)

    return make


@pytest.fixture
def serve_metrics() -> Iterator[Callable[[RunMetrics], str]]:
    """Yield a function that serves a run's metrics over real HTTP, and returns the endpoint."""
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
    """Give pages in ``AppTest`` this state folder; stop their background work at the end of the test."""
    settings = DashboardSettings(home=home, scrape_seconds=0.05)
    for name, value in to_environment(settings).items():
        monkeypatch.setenv(name, value)
    yield settings
    close_shared()


@pytest.fixture
def wait_for() -> Callable[..., None]:
    """Return a function that waits for a condition in another thread or process, and fails after a while."""

    def wait(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
            time.sleep(0.02)

    return wait


@pytest.fixture(scope="session")
def ask_app() -> Callable[[Any, dict[str, Any]], list[MutableMapping[str, Any]]]:
    """Return a function that sends a scope to an ASGI application and returns its messages.

    Browser tests keep an event loop in the main thread.
    """

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
