"""Incidents to send, a real HTTP server that receives them, and a real PostgreSQL."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from postgres import Postgres, programs

from stallwatch_exporter.incident import Incident
from stallwatch_rules.messages import bilingual
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import RulePage, Sections
from stallwatch_rules.records import Primary


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    found = programs()
    if found is None:
        pytest.skip("not installed: postgresql")
    server = Postgres(found)
    yield server
    server.close()


class ChatServer:
    """Chat server that stores accepted JSON bodies; the statuses in `answers` come first, then 200."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.requests = 0
        self.answers: list[int] = []
        self._arrived = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer._arrived:
                    outer.requests += 1
                    status = outer.answers.pop(0) if outer.answers else 200
                    if status == 200:
                        outer.bodies.append(json.loads(body))
                    outer._arrived.notify_all()
                self.send_response(status)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Apprise URL of this server, with a secret in its path."""
        # A late answer of a busy machine would make the client send an accepted message again.
        return f"json://127.0.0.1:{self._server.server_port}/hook-s3cr3t-t0ken?cto=60&rto=60"

    def wait_for_requests(self, count: int) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.requests >= count, timeout=120)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def chat_server() -> Iterator[ChatServer]:
    server = ChatServer()
    yield server
    server.close()


@pytest.fixture
def other_chat_server() -> Iterator[ChatServer]:
    server = ChatServer()
    yield server
    server.close()


@pytest.fixture
def stall() -> Callable[..., Incident]:
    def make(**changes: Any) -> Incident:
        fields: dict[str, Any] = {
            "id": "myrun/stall/silent-hang-no-error/1",
            "run": "myrun",
            "kind": "stall",
            "rule": "silent-hang-no-error",
            "severity": "critical",
            "status": "open",
            "episode": 1,
            "opened_at": 1000.0,
            "updated_at": 1000.0,
            "host": "node-1",
            "rank": 1,
            "step": 160,
            "total_steps": 900,
            "last_loss": 0.63214,
            "stalled_seconds": 42.0,
            "threshold_seconds": 30.0,
            "evidence": ["{'loss': 0.63214, 'epoch': 0.4}"],
        }
        return Incident(**{**fields, **changes})

    return make


@pytest.fixture
def oom_primary() -> Primary:
    return Primary(
        rule="cuda-oom",
        title="CUDA out of memory",
        role="cause",
        harm="fatal",
        confidence=0.9,
        rank=7,
        file="rank7.log",
        line=12,
        time=None,
        step=100,
        evidence=["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."],
        captures={},
        why=bilingual("An allocation did not fit.", "一次显存申请失败。"),
        fixes=["Lower `micro_batch_size`.", "Turn on activation checkpointing.", "Use offload.", "Fourth."],
    )


@pytest.fixture
def oom_page() -> RulePage:
    return RulePage(
        id="cuda-oom",
        title="CUDA out of memory",
        title_zh="CUDA 显存不足",
        family="memory",
        role="cause",
        harm="fatal",
        status="stable",
        since="0.1.0",
        patterns=["CUDA out of memory"],
        requires=[],
        unless=[],
        explains=[],
        emitted_by=[],
        probe=None,
        references=[],
        sections=Sections(
            what="What happened.",
            why="An allocation did not fit; see [the notes](https://example.org/notes).",
            fixes=["Lower `micro_batch_size`."],
            harmless="",
            zh_what="发生了什么。",
            zh_why="一次显存申请失败。",
            zh_fixes=["减小 `micro_batch_size`。"],
        ),
        fires=["CUDA out of memory"],
        quiet=["fine"],
        path="memory/cuda-oom.md",
    )


@pytest.fixture
def catalogue(oom_page: RulePage) -> Catalogue:
    return Catalogue.of([oom_page])
