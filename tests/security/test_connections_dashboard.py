"""Attacks on the dashboard by connections that send little, send slowly, or read no answer."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from dashboards import served
from loops import run
from rawhttp import request
from uvicorn.server import ServerState
from websockets.sync.client import connect

from stallwatch_dashboard.connections import BoundedProtocol
from stallwatch_dashboard.settings import DashboardSettings

FEW = 1024  #: descriptors, as most systems allow a process
MANY = 1500  #: connections
LIMITED = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({FEW}, {FEW}))\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n"
MUCH = 64 << 20  # bytes, more than the system takes for a reader who takes nothing
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Room for the attacker's connections in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4 * MANY), hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_idle_connections_do_not_affect_the_pages(tmp_path: Path) -> None:
    """More of them than the dashboard may have descriptors: a page stays connected, another one is served."""
    with served(DashboardSettings(home=tmp_path), LIMITED) as (port, lines), ExitStack() as opened:
        origin = f"http://127.0.0.1:{port}"
        page = opened.enter_context(connect(f"ws://127.0.0.1:{port}/_stcore/stream", origin=origin))
        for _ in range(MANY):
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
        assert request(port, "/", f"Host: 127.0.0.1:{port}", "Connection: close").status == 200
        assert page.ping().wait(120)
    assert sum(map(len, lines)) < 4096


def test_dashboard_raises_its_limit_of_descriptors() -> None:
    program = (
        "import resource; from stallwatch_dashboard.connections import bound\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))\n"
        "bound(); print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "512 512\n"


# ---- one connection at a time, in this process, whose time the test drives


class Driven:
    """A server with room for two, whose application answers a request as its method says."""

    def __init__(self, now: list[float]) -> None:
        self.now = now
        self.state = ServerState()
        self.go_on = asyncio.Event()
        self.reading = 0
        self._kept: list[asyncio.StreamWriter] = []  # a connection is closed with its writer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer GET when allowed, POST after the body, PATCH after both, and PUT with much data."""
        if scope["method"] in ("GET", "PATCH"):
            await self.go_on.wait()
        while scope["method"] in ("POST", "PATCH"):
            self.reading += 1
            if not (await receive()).get("more_body"):
                break
        body = bytes(MUCH) if scope["method"] == "PUT" else b"done"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})  # waits until the reader has taken the first

    @property
    def peers(self) -> list[BoundedProtocol]:
        """The connections."""
        return [peer for peer in self.state.connections if isinstance(peer, BoundedProtocol)]

    def pass_time(self, seconds: float) -> None:
        """Let time pass, then check every connection."""
        self.now[0] += seconds
        for peer in self.peers:
            peer.watch()

    async def connect(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect; the server has accepted the connection, and has what was sent."""
        known = set(self.peers)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._kept.append(writer)
        writer.write(sent)
        await until(lambda: not set(self.peers) <= known)
        (peer,) = set(self.peers) - known
        await until(lambda: not sent or peer.cycle is not None)
        return reader, writer

    async def serve(self, attack: Callable[[Driven], Awaitable[None]]) -> None:
        """Serve during the attack."""
        config = uvicorn.Config(self, http=BoundedProtocol, lifespan="off", log_config=None)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: BoundedProtocol(config=config, server_state=self.state, app_state={}), "127.0.0.1", 0
        )
        self.port = server.sockets[0].getsockname()[1]
        try:
            await attack(self)
        finally:
            server.close()
            for peer in self.peers:
                peer.transport.abort()


async def until(condition: Callable[[], bool]) -> None:
    """Let the server work until then."""
    while not condition():
        await asyncio.sleep(0)


Attack = Callable[[Callable[[Driven], Awaitable[None]]], None]


@pytest.fixture
def attack(monkeypatch: pytest.MonkeyPatch) -> Attack:
    """Runs an attack on a server."""
    now = [0.0]
    monkeypatch.setattr(BoundedProtocol, "clock", staticmethod(lambda: now[0]))
    monkeypatch.setattr(BoundedProtocol, "most", 2)
    return lambda attack: run(Driven(now).serve(attack))


def test_slow_request_head_is_ended_at_one_deadline(attack: Attack) -> None:
    """One byte each second, indefinitely: the deadline is that of the head, not of its next byte."""

    async def dribble(server: Driven) -> None:
        reader, writer = await server.connect()
        (peer,) = server.peers
        for sent, byte in enumerate(b"GET / HTTP", start=1):
            writer.write(bytes([byte]))
            await until(lambda sent=sent: len(peer.conn.trailing_data[0]) == sent)  # type: ignore[misc]
            server.pass_time(1.0)
        assert await reader.read() == b""

    attack(dribble)


def test_longest_waiting_connection_is_closed_and_active_ones_stay(attack: Attack) -> None:
    async def fill(server: Driven) -> None:
        busy, _ = await server.connect(GET)
        server.pass_time(60.0)
        server.now[0] += 1.0
        idle, _ = await server.connect()
        server.now[0] += 1.0
        later, _ = await server.connect(POST + bytes(20))
        assert await idle.read() == b""
        server.go_on.set()
        for reader in (busy, later):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")

    attack(fill)


def test_next_connection_is_refused_if_all_are_active(attack: Attack) -> None:
    async def fill(server: Driven) -> None:
        busy = [await server.connect(GET) for _ in range(2)]
        late, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await late.read() == b""
        writer.close()
        server.go_on.set()
        for reader, _ in busy:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")

    attack(fill)


def test_body_may_be_slow_but_not_pause_for_long(attack: Attack) -> None:
    """An upload over a slow line is no attack; one that is announced and never sent is."""

    async def upload(server: Driven) -> None:
        slow, writer = await server.connect(POST)
        silent, _ = await server.connect(POST)
        for pieces in range(20):
            await until(lambda pieces=pieces: server.reading == 2 + pieces)  # type: ignore[misc]
            server.pass_time(9.0)
            writer.write(b"x")
        assert (await slow.readline()).startswith(b"HTTP/1.1 200")
        assert await silent.read() == b""

    attack(upload)


def test_upload_that_the_server_delays_is_not_ended(attack: Attack) -> None:
    async def upload(server: Driven) -> None:
        size = 1 << 20
        head = POST.replace(b"POST", b"PATCH").replace(b"20", str(size).encode())
        reader, _ = await server.connect(head + bytes(size))
        (peer,) = server.peers
        await until(lambda: peer.flow.read_paused)
        server.pass_time(60.0)
        server.go_on.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")

    attack(upload)


def test_reader_may_be_slow_but_not_pause_for_long(attack: Attack) -> None:
    """Plotly's script over a slow line is no attack; never to take an answer is."""

    async def read(server: Driven) -> None:
        reader, _ = await server.connect(GET.replace(b"GET", b"PUT"))
        (peer,) = server.peers
        await until(lambda: peer.transport.get_write_buffer_size() > 0)
        for _ in range(3):
            left = peer.transport.get_write_buffer_size()
            while peer.transport.get_write_buffer_size() == left:
                assert await reader.read(1 << 20)
            server.pass_time(9.0)
            assert peer in server.peers
        server.pass_time(10.0)
        assert peer not in server.peers

    attack(read)
